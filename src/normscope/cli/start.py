"""Where the command ``normscope`` begins: Ctrl-C is answered the same while it still loads."""

from __future__ import annotations

import sys

__all__ = ["start"]


def start() -> int:
    """Load the command line and run it.

    Returns:
        The exit code; 130 after Ctrl-C.
    """
    try:
        from normscope.cli.main import main

        code = main()
    except KeyboardInterrupt:  # before `main` had its hands on it, or once more in its last words
        print("normscope: interrupted", file=sys.stderr)
        code = 130
    # Python ends itself by the signal, whatever the code, if the interrupt once left a call of
    # exec, as the making of a dataclass is; the next exec forgets it.
    exec("")
    return code
