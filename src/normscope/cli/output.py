"""What commands print for programs, strict JSON, and while they work, progress on stderr."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_DONE_OF_ALL = re.compile(r"\b(\d+) of (\d+)\b")
_LONG = 10.0  # seconds: before them nobody asks what is left
_SILENT = 2.0  # seconds: what is over sooner needs no line in a log


def print_json(value: object) -> None:
    """Print strict JSON: what is not a finite number becomes null."""
    print(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[str], None]]:
    """What is on, on stderr: a bar with the time left in a terminal, plain lines elsewhere.

    Args:
        label: what is on.
        total: number of parts; None if it is told on the way, or not at all.

    Yields:
        A function to call, with a text, as each part begins. Without a total "3 of 18" in the text
        says how far it is; in a log a line begins with what stands before the first comma.
    """
    from rich.console import Console

    console = Console(stderr=True)
    with Bar(label, total, console) if console.is_terminal else Lines(label, total) as shown:
        yield shown.tell


class Bar:
    """Progress in a terminal.

    Args:
        label: what is on.
        total: number of parts, if it is known.
        console: of stderr.
    """

    def __init__(self, label: str, total: int | None, console: Console) -> None:
        from rich import progress as columns

        text = columns.TextColumn("{task.description}", markup=False)  # it may hold brackets
        life = () if total else (columns.SpinnerColumn(), columns.TimeElapsedColumn())
        counts = columns.BarColumn(), columns.MofNCompleteColumn(), columns.TimeRemainingColumn()
        self._bar = columns.Progress(*life, text, *counts, console=console, transient=True)
        self._task = self._bar.add_task(label, total=total)
        self._label, self._total, self._begun = label, total, 0

    def tell(self, text: str) -> None:
        """A part begins."""
        done, total = (self._begun, self._total) if self._total else _done_of_all(text)
        shown = f"{self._label}: {text}"
        self._bar.update(self._task, completed=done, total=total, description=shown)
        self._begun += 1

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._total and error[0] is None:  # nothing is left of what was planned
            self._bar.update(self._task, completed=self._total)
        self._bar.stop()


class Lines:
    """Progress in a log: what takes two seconds has a line, and so has every part that takes one.

    The parts are told apart by what stands before the first comma; a text without one names no
    part. A part that goes on has a line after ten seconds, and further ones, farther and farther
    apart: an hour has about forty.

    Args:
        label: what is on.
        total: number of parts, if it is known.
        clock: tells the seconds.
    """

    def __init__(
        self, label: str, total: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._label, self._total, self._clock = label, total, clock
        self._begun, self._text, self._said = 0, "", ""
        self._start = self._last = clock()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._watch = threading.Thread(target=self._look_on, daemon=True)

    def tell(self, text: str) -> None:
        """A part begins."""
        with self._lock:
            self._text, self._begun = text, self._begun + 1
            self.look()

    def look(self) -> None:
        """Print a line if one is due."""
        now = self._clock()
        seconds, since, part = now - self._start, now - self._last, _part_of(self._text)
        if self._last == self._start:
            due = seconds >= _SILENT
        elif part != self._said:
            due = since >= max(1, seconds / 50)
        else:
            due = since >= max(10, seconds / 10)
        if due:
            self._last, self._said = now, part
            if sys.stderr is None:  # closed: print would write to stdout
                return
            with suppress(OSError):  # a reader who has gone must not end the work
                print(f"{self._line()} ({self._time(seconds)})", file=sys.stderr, flush=True)

    def _time(self, seconds: float) -> str:
        """The seconds so far, and those left once a tenth of a long count is done."""
        done, total = _done_of_all(self._text)
        begins = self._total or _part_of(self._text)  # then the count is of parts begun, not done
        if begins or not done or not total or seconds < _LONG or 10 * done < total:
            return f"{seconds:.0f} s"
        return f"{seconds:.0f} s, about {seconds * (total - done) / done:.0f} s left"

    def _line(self) -> str:
        if not self._begun:
            return self._label
        line = f"{self._label}: {self._text}"
        if not self._total or self._begun > self._total or _DONE_OF_ALL.search(self._text):
            return line
        return f"{line}, {self._begun} of {self._total}"

    def _look_on(self) -> None:
        """A part may be long and say nothing."""
        while not self._ended.wait(0.5):
            with self._lock:
                self.look()

    def __enter__(self) -> Lines:
        self._watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._watch.join()


def _part_of(text: str) -> str:
    """The name of the part that is on, if it has one.

    >>> _part_of("batch (2 of 3), ramp from 0.1"), _part_of("3 of 18 cells")
    ('batch (2 of 3)', '')
    """
    name, comma, _ = text.partition(", ")
    return name if comma else ""


def _done_of_all(text: str) -> tuple[int | None, int | None]:
    """How far it is, if the text says so.

    >>> _done_of_all("3 of 18 cells"), _done_of_all("reading")
    ((3, 18), (None, None))
    """
    counted = _DONE_OF_ALL.search(text)
    return (int(counted[1]), int(counted[2])) if counted else (None, None)


@contextmanager
def resumable(store: Path) -> Iterator[None]:
    """Let Ctrl-C inside say what becomes of the work.

    Args:
        store: keeps what is finished, once the file is there.
    """
    try:
        yield
    except KeyboardInterrupt:
        kept = f"what is finished is kept in {store}, and the same command goes on"
        if not store.exists():
            kept = "nothing was computed yet, and the same command begins again"
        raise KeyboardInterrupt(f"interrupted; {kept}.") from None
