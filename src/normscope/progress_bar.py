"""Progress on stderr: a bar with the time left in a terminal, rare plain lines in a log."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from normscope.progress import Progress, ProgressCallback, ignore_progress
from normscope.text import format_duration

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
T = TypeVar("T")

_TIME_COLUMNS = 35  # of a short bar, the elapsed time and "about 2.5 min left"
_MIN_TEXT_COLUMNS = 20
_SILENT = 2.0  # seconds before the first line of a log
_QUICK = 1.0  # second within which a call of the library shows nothing
_MIN_ELAPSED = 10.0  # seconds before the first estimate of the time left
_MIN_LEFT = 1.0  # second: shown while anything is left


@contextmanager
def show_progress(label: str) -> Iterator[ProgressCallback]:
    """Show progress on stderr while the block runs.

    Args:
        label: name of the work.

    Yields:
        The callback for ``progress=`` arguments.
    """
    from rich.console import Console

    console = Console(stderr=True)
    shown = Bar(label, console) if console.is_terminal else Lines(label)
    with shown:
        yield shown.show


def shows_progress(label: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function with a ``progress`` argument, so that it shows a bar where one is wanted.

    With ``progress=True``, and with None in a notebook or an interactive console, the function
    receives a callback that shows the events on stderr. All else is passed on.

    Args:
        label: name of the work.

    Returns:
        The decorator.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        place = list(inspect.signature(function).parameters).index("progress")

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            given: Any = args[place] if len(args) > place else kwargs.get("progress")
            if given is not True and not (given is None and _is_interactive()):
                return function(*args, **kwargs)
            positional: Any = list(args)
            named: Any = dict(kwargs)
            with _bar_of_call(label) as show:
                if len(args) > place:
                    positional[place] = show
                else:
                    named["progress"] = show
                return function(*positional, **named)

        return call

    return decorate


def _is_interactive() -> bool:
    """Return whether Python runs in a console or a notebook, whose prompt IPython defines too."""
    return hasattr(sys, "ps1")


@contextmanager
def _bar_of_call(label: str) -> Iterator[ProgressCallback]:
    """Show the progress of one call, unless another call shows its own already."""
    from rich.console import Console

    if not _ONE_BAR.acquire(blocking=False):
        yield ignore_progress
        return
    try:
        console = Console(stderr=True)
        has_bar = find_spec("ipywidgets") if console.is_jupyter else console.is_terminal
        shown = Bar(label, console, _QUICK) if has_bar else Lines(label)
        with shown:
            yield shown.show
    finally:
        _ONE_BAR.release()


_ONE_BAR = threading.Lock()  # rich draws one at a time


class Bar:
    """Progress in a terminal.

    Args:
        label: name of the work.
        console: of stderr.
        delay: seconds of work before the bar appears.
    """

    def __init__(self, label: str, console: Console, delay: float = 0.0) -> None:
        from rich import progress as columns
        from rich.table import Column

        text = columns.TextColumn("{task.description}", markup=False)  # it may have brackets
        count, left = (columns.TextColumn(f"{{task.fields[{name}]}}") for name in ("count", "left"))
        elapsed = columns.TimeElapsedColumn(table_column=Column(no_wrap=True))
        shown = columns.SpinnerColumn(), text, columns.BarColumn(), count, elapsed, left
        self._bar = columns.Progress(*shown, console=console, transient=True)
        self._left = TimeLeft(time.monotonic)  # formatted whenever the bar is drawn
        self._task = self._bar.add_task(label, total=None, count="", left=self._left)
        self._label = label
        self._appears, self._is_shown = time.monotonic() + delay, delay == 0

    def show(self, event: Progress) -> None:
        """Show an event."""
        self._left.count(event)
        if not self._is_shown and time.monotonic() >= self._appears:
            self.__enter__()
        room = self._bar.console.width - len(event.count) - _TIME_COLUMNS
        text = f"{self._label}: {', '.join(filter(None, (event.stage, event.detail)))}"
        text = _shorten(text.removesuffix(": "), max(room, _MIN_TEXT_COLUMNS))
        self._bar.update(
            self._task,
            description=text,
            completed=event.done,
            total=event.total,
            count=event.count,
        )

    def __enter__(self) -> Bar:
        self._is_shown = time.monotonic() >= self._appears
        if self._is_shown:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self._bar.update(self._task, completed=self._bar.tasks[0].total)
        self._bar.stop()


def _shorten(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: columns - 1]}…"


class Lines:
    """Progress in a log: a line after two seconds, then one for each new stage of a second or more.

    A stage that goes on has a line after ten seconds, and further ones at growing intervals: an
    hour has about forty.

    Args:
        label: name of the work.
        clock: returns the seconds.
    """

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label, self._clock = label, clock
        self._left = TimeLeft(clock)
        self._event, self._printed_stage = Progress(), ""
        self._start = self._last = clock()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._timer = threading.Thread(target=self._print_regularly, daemon=True)

    def show(self, event: Progress) -> None:
        """Show an event."""
        with self._lock:
            self._event = event
            self._left.count(self._event)
            self.print_if_due()

    def print_if_due(self) -> None:
        """Print a line if one is due."""
        now = self._clock()
        seconds, since = now - self._start, now - self._last
        if self._last == self._start:
            due = seconds >= _SILENT
        elif self._event.stage != self._printed_stage:
            due = since >= max(1, seconds / 50)
        else:
            due = since >= max(10, seconds / 10)
        if not due:
            return
        self._last, self._printed_stage = now, self._event.stage
        if sys.stderr is None:  # closed: print would write to stdout
            return
        known = str(self._event) or "working"  # before the first event
        times = ", ".join(filter(None, (f"{seconds:.0f} s", str(self._left))))
        with suppress(OSError):  # a closed pipe must not end the work
            print(f"{self._label}: {known} ({times})", file=sys.stderr, flush=True)

    def _print_regularly(self) -> None:
        """Print lines while no event comes."""
        while not self._ended.wait(0.5):
            with self._lock:
                self.print_if_due()

    def __enter__(self) -> Lines:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._timer.join()


class TimeLeft:
    """An estimate of the time left, from the pace of this run.

    What the first event counts as done already, and what is marked as kept, took no time here.

    Args:
        clock: returns the seconds.

    Examples:
        >>> now = [0.0]
        >>> left = TimeLeft(lambda: now[0])
        >>> for done in (60, 70, 80):  # an earlier run has done sixty
        ...     left.count(Progress(done=done, total=100))
        ...     now[0] += 10
        >>> left.seconds  # 20 more at one a second, of which 10 have passed
        10.0
        >>> str(left)
        'about 10 s left'
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None
        self._done, self._total, self._last, self._reports = 0, 0, 0.0, 0
        self._is_bound = False

    def count(self, event: Progress) -> None:
        """Take the counts of an event, if it has some."""
        if event.done is None or not event.total:
            return
        done, total = event.done - event.kept, event.total - event.kept
        self._is_bound = event.total_is == "bound"
        now = self._clock()
        if self._first is None:
            self._first = done, now
        elif done != self._done:
            self._reports += 1
        if done != self._done or total != self._total:
            self._done, self._total, self._last = done, total, now

    @property
    def seconds(self) -> float | None:
        """Seconds to the end; None in the first ten seconds and the first tenth of the work.

        They fall while a unit runs, and grow again once it takes longer than those before.
        """
        if self._first is None:
            return None
        first, begin = self._first
        own, rest = self._done - first, self._total - self._done
        now = self._clock()
        if own <= 0 or now - begin < _MIN_ELAPSED or 10 * own < self._total - first:
            return None
        return max(self._expected(begin, now, rest / own), _MIN_LEFT) if rest > 0 else 0.0

    def _expected(self, begin: float, now: float, rest: float) -> float:
        """Return the seconds to the end, for a rest that is a multiple of what is done.

        Counts come a mean time apart. One that is late is assumed to be late as long again, and
        those that follow to come at the pace up to now.
        """
        apart, since = (self._last - begin) / self._reports, now - self._last
        counts = self._reports * rest  # to come
        late = since - apart * min(counts, 1.0)
        if late <= 0:
            return apart * counts - since
        return late + max(counts - 1, 0.0) * (now - begin) / (self._reports + 1)

    def __str__(self) -> str:
        seconds = self.seconds
        if seconds is None:
            return ""
        return f"{'up to' if self._is_bound else 'about'} {format_duration(round(seconds))} left"
