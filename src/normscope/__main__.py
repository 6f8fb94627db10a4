"""``python -m normscope`` is the command ``normscope``."""

import sys

from normscope.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
