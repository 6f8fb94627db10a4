"""Ctrl-C at a moment when nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

__all__ = ["Interruption", "deferred_interruption"]


@dataclass
class Interruption:
    """Whether Ctrl-C was pressed and not yet acted upon."""

    requested: bool = False

    def note(self, signal_number: int, frame: FrameType | None) -> None:
        """The signal's handler: note the first, raise at the second.

        Args:
            signal_number: unused; Python's convention.
            frame: unused; Python's convention.

        Raises:
            KeyboardInterrupt: if Ctrl-C is pressed again before the first was acted upon.
        """
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def deferred_interruption() -> Iterator[Interruption]:
    """Note Ctrl-C instead of raising; whoever opened the block raises in its own time.

    Does nothing outside the main thread, where Python allows no handler, and where the program
    has a handler of its own.
    """
    interruption = Interruption()
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interruption
        return
    previous = signal.signal(signal.SIGINT, interruption.note)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, previous)
