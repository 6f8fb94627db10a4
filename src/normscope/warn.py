"""Warnings that point at the line of the program which called normscope."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from normscope.errors import NormscopeWarning
from normscope.interrupts import Undo

_THREAD = threading.local()


def warn(message: str) -> None:
    """Issue a `NormscopeWarning` for the first caller outside of normscope.

    Args:
        message: of the warning.
    """
    if not getattr(_THREAD, "silent", False):
        warnings.warn(message, NormscopeWarning, stacklevel=_caller_level())


@contextmanager
def silenced() -> Iterator[None]:
    """Leave out the warnings of `warn` inside, in this thread.

    ``warnings.catch_warnings`` would change the filters of all threads.
    """
    before = getattr(_THREAD, "silent", False)
    restore = Undo(lambda: setattr(_THREAD, "silent", before))
    _THREAD.silent = True
    try:
        yield
    finally:
        restore()


def _caller_level() -> int:
    """Return the stack level, counted from `warn`, of the first frame outside of normscope."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("normscope."):
        frame, level = frame.f_back, level + 1
    return level
