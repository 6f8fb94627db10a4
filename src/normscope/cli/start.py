"""Entry point of the command ``normscope``: Ctrl-C exits with 130, also while modules load."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress

_INTERRUPTED = 130
_exit_code: list[int] = []  # of an interrupted command


def start() -> int:
    """Load the command line, run it, and return its exit code; 130 after Ctrl-C.

    Once the command has ended, Ctrl-C no longer changes the code.
    """
    code = _INTERRUPTED
    try:
        atexit.register(_exit_if_interrupted)  # the first to be registered runs last
        from normscope.cli.main import main

        code = main()
        _restore_interrupt(code)
    except KeyboardInterrupt:  # outside of `main`, or once more while it printed
        _restore_interrupt(code)
        if code == _INTERRUPTED:
            print("normscope: interrupted", file=sys.stderr)
    _exit_code[:] = [code] if code == _INTERRUPTED else []
    return code


def _exit_if_interrupted() -> None:
    """Exit with the code of an interrupted command.

    Python would otherwise end by the signal if the interrupt has ever passed through ``exec`` of a
    string, which is how dataclasses are made.
    """
    if _exit_code:
        _flush()
        os._exit(_exit_code[0])


def _restore_interrupt(code: int) -> None:
    """The output is complete: Ctrl-C must no longer change the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
        return
    if code == _INTERRUPTED:  # a second Ctrl-C ends the process at once
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return
    signal.signal(signal.SIGINT, lambda *_: _leave_threads(code))
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # while Python shuts down


def _leave_threads(code: int) -> None:
    """Exit without waiting for threads that still run, such as those of a user's data loader."""
    others = (each for each in threading.enumerate() if each is not threading.main_thread())
    if any(not each.daemon for each in others):
        _flush()
        os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, without a reader, or in use by another thread
            stream.flush()
