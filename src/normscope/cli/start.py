"""Where the command ``normscope`` begins: Ctrl-C is answered the same while it still loads."""

from __future__ import annotations

import signal
import sys

__all__ = ["start"]

_INTERRUPTED = 130


def start() -> int:
    """Load the command line and run it.

    Returns:
        The exit code; 130 after Ctrl-C, which is ignored once the command has ended by itself.
    """
    try:
        from normscope.cli.main import main

        code = main()
    except KeyboardInterrupt:  # before `main` had its hands on it, or once more in its last words
        print("normscope: interrupted", file=sys.stderr)
        code = _INTERRUPTED
    # Python ends itself by the signal, whatever the code, if the interrupt once left a call of
    # exec, as the making of a dataclass is; the next exec forgets it.
    exec("")
    if code != _INTERRUPTED:  # who has pressed it once may mean it
        # everything is said: while Python takes itself down, Ctrl-C would end it without a word
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code
