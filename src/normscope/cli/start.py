"""Where the command ``normscope`` begins: Ctrl-C is answered the same while it still loads."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress

__all__ = ["start"]

_INTERRUPTED = 130


def start() -> int:
    """Load the command line and run it.

    Returns:
        The exit code; 130 after Ctrl-C, which no longer changes it once the command has ended.
    """
    code = _INTERRUPTED
    try:
        from normscope.cli.main import main

        code = main()
        _let_end(code)
    except KeyboardInterrupt:  # before `main` had its hands on it, or once more in its last words
        _let_end(code)
        if code == _INTERRUPTED:
            print("normscope: interrupted", file=sys.stderr)
    # Python ends itself by the signal, whatever the code, if the interrupt once left a call of
    # exec, as the making of a dataclass is; the next exec forgets it.
    exec("")
    return code


def _let_end(code: int) -> None:
    """Everything is said: from here on Ctrl-C is no error, and does not hide the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
        return
    if code == _INTERRUPTED:  # who presses it once more means it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return
    signal.signal(signal.SIGINT, lambda *_: _leave_threads(code))
    # while Python takes itself down, Ctrl-C would end it without a word
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def _leave_threads(code: int) -> None:
    """Wait no longer for threads that go on, of a user's data as it may be."""
    others = (each for each in threading.enumerate() if each is not threading.main_thread())
    if any(not each.daemon for each in others):
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed, without a reader, or in the midst of it
                stream.flush()
        os._exit(code)
