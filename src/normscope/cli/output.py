"""What commands print for programs, strict JSON, and while they work, progress on stderr."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from normscope.cli.counts import (
    DONE_OF_ALL,
    PARTS,
    SHARE,
    UNEVEN,
    count_steps,
    done_of_all,
    grown,
    is_timed,
    part_of,
)
from normscope.cli.time_left import TimeLeft

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["PARTS", "UNEVEN", "Bar", "Lines", "print_json", "progress"]

_SPENT, _REST = 16, 19  # columns of a short bar with the time, and of "about 2.5 min left"
_LEAST = 20  # columns of what is on
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
def progress(
    label: str, total: int | None = None, counted: str = PARTS
) -> Iterator[Callable[[Any], None]]:
    """What is on, on stderr: a bar with the time left in a terminal, plain lines elsewhere.

    Args:
        label: what is on.
        total: number of parts; None if it is told on the way, or not at all.
        counted: how they are counted; with a total that is a bound, such as "product {} of at most
            {}", or with `UNEVEN`, parts tell no time left.

    Yields:
        A function to call, with a text, as each part begins. Without a total "3 of 18" or "17 %
        done (2 parts kept: 5 %)" in the text says how far it is, "(120 of at most 600 steps)" how
        long it may go on; in a log a line begins with what stands before the first comma.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        shown: Bar | Lines = Bar(label, total, console, counted)
    else:
        shown = Lines(label, total, counted=counted)
    with shown:
        yield lambda event: shown.tell(str(event))


class Bar:
    """Progress in a terminal.

    Args:
        label: what is on.
        total: number of parts, if it is known.
        console: of stderr.
        counted: how they are counted.
    """

    def __init__(
        self, label: str, total: int | None, console: Console, counted: str = PARTS
    ) -> None:
        from rich import progress as columns
        from rich.table import Column

        text = columns.TextColumn("{task.description}", markup=False)  # it may hold brackets
        life = () if total else (columns.SpinnerColumn(),)
        count, left = (columns.TextColumn(f"{{task.fields[{name}]}}") for name in ("count", "left"))
        spent = columns.TimeElapsedColumn(table_column=Column(no_wrap=True))  # the bar gives way
        shown = columns.BarColumn(), count, spent, left
        self._bar = columns.Progress(*life, text, *shown, console=console, transient=True)
        self._left = TimeLeft(time.monotonic)  # asked for its words whenever the bar is drawn
        self._task = self._bar.add_task(label, total=total, count="", left=self._left)
        self._label, self._total, self._counted, self._begun = label, total, counted, 0

    def tell(self, text: str) -> None:
        """A part begins."""
        self._total = grown(self._total, self._begun + 1, self._counted)
        done, total = (self._begun, self._total) if self._total else done_of_all(text)
        self._begun += 1
        count = ""
        if done is not None and total:
            count = "" if SHARE.search(text) else f"{done}/{total}"
            if is_timed(self._counted):
                self._left.count(done, total)
        has_time = count_steps(text, self._left, self._counted) or is_timed(self._counted)
        if self._total:
            count = self._counted.format(min(self._begun, self._total), self._total)
        times = _SPENT + (_REST if has_time else 0)
        room = max(self._bar.console.width - len(count) - times, _LEAST)  # the times are not cut
        shown = f"{self._label}: {text}"
        shown = shown if len(shown) <= room else f"{shown[: room - 1]}…"
        self._bar.update(self._task, completed=done, total=total, description=shown, count=count)

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
        counted: how the parts are counted.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        clock: Callable[[], float] = time.monotonic,
        counted: str = PARTS,
    ) -> None:
        self._label, self._total, self._clock, self._counted = label, total, clock, counted
        self._left = TimeLeft(clock)
        self._begun, self._text, self._said = 0, "", ""
        self._start = self._last = clock()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._watch = threading.Thread(target=self._look_on, daemon=True)

    def tell(self, text: str) -> None:
        """A part begins."""
        with self._lock:
            self._text, self._begun = text, self._begun + 1
            self._total = grown(self._total, self._begun, self._counted)
            done, total = done_of_all(text)
            # of parts the count is of those begun, not done
            if done is not None and total and not (self._total or part_of(text)):
                self._left.count(done, total)
            elif self._total and is_timed(self._counted):
                self._left.count(self._begun - 1, self._total)
            count_steps(text, self._left, self._counted)
            self.look()

    def look(self) -> None:
        """Print a line if one is due."""
        now = self._clock()
        seconds, since, part = now - self._start, now - self._last, part_of(self._text)
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
        """The seconds so far, and those left where that is known."""
        return ", ".join(filter(None, (f"{seconds:.0f} s", str(self._left))))

    def _line(self) -> str:
        if not self._begun:
            return self._label
        line = f"{self._label}: {self._text}"
        if not self._total or self._begun > self._total or DONE_OF_ALL.search(self._text):
            return line
        return f"{line}, {self._counted.format(self._begun, self._total)}"

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
