"""``python -m normscope`` is the command ``normscope``."""

import sys

from normscope.cli.start import start

if __name__ == "__main__":
    sys.exit(start())
