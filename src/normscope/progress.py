"""Progress of long work as data: library functions send events, the command line shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from normscope.errors import ArgumentTypeError

__all__ = [
    "Progress",
    "ProgressCallback",
    "ProgressOption",
    "callback_of",
    "ignore_progress",
    "nested_progress",
]

_QUANTIFIERS = {"exact": "", "estimate": "about ", "bound": "at most "}


@dataclass(frozen=True)
class Progress:
    """One event: the stage that runs now, and how much of the work is finished.

    ``str(event)`` is a line for people, so that ``progress=print`` works.

    Args:
        stage: what runs now, such as "batch, seed 0"; a log has a line for each new stage.
        detail: the position within the stage, such as "run 3 at 0.2".
        done: finished units of work, those kept from earlier runs included; None if not counted.
        total: all units of work; None if not known.
        unit: what is counted, in the plural, such as "cells"; "%" shows the share of the total.
        total_is: whether the total is exact, an estimate (the time left is rough) or an upper
            bound (the time left is one too).
        kept: those of ``done`` that an earlier run computed; they do not count for the pace.

    Examples:
        >>> print(Progress("training", "seed 2", 3, 18, "cells"))
        training, seed 2, 3 of 18 cells
        >>> print(Progress("run 3 at 0.2", done=120, total=600, unit="steps", total_is="bound"))
        run 3 at 0.2, 120 of at most 600 steps
        >>> print(Progress("landscape", done=30, total=50, unit="%", kept=20))
        landscape, 60 % done (40 % by earlier runs)
    """

    stage: str = ""
    detail: str = ""
    done: int | None = None
    total: int | None = None
    unit: str = ""
    total_is: Literal["exact", "estimate", "bound"] = "exact"
    kept: int = 0

    @property
    def count(self) -> str:
        """How much is done, as text; empty if it is not counted."""
        if self.done is None or not self.total:
            return ""
        if self.unit == "%":
            kept = f" ({100 * self.kept // self.total} % by earlier runs)" if self.kept else ""
            return f"{100 * self.done // self.total} % done{kept}"
        return f"{self.done} of {_QUANTIFIERS[self.total_is]}{self.total} {self.unit}".rstrip()

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.stage, self.detail, self.count)))


ProgressCallback: TypeAlias = Callable[[Progress], None]
"""A function that receives the events."""

ProgressOption: TypeAlias = ProgressCallback | bool | None
"""What a ``progress`` argument takes: a function; True: show a bar; None: in a notebook or console.

A bar appears after a second of work, on stderr."""


def ignore_progress(event: Progress) -> None:
    """Do nothing."""


def callback_of(progress: ProgressOption) -> ProgressCallback:
    """Return the function that receives the events of a call, which may ignore them.

    Args:
        progress: as given, after `normscope.progress_bar.shows_progress` has replaced a bar.

    Raises:
        ArgumentTypeError: if it is not of those.

    >>> callback_of("yes")
    Traceback (most recent call last):
        ...
    normscope.errors.ArgumentTypeError: progress must be a function, True, False or None, got 'yes'.
    """
    if progress is None or isinstance(progress, bool):
        return ignore_progress
    if not callable(progress):
        raise ArgumentTypeError(
            f"progress must be a function, True, False or None, got {progress!r}."
        )
    return progress


def nested_progress(
    callback: ProgressCallback, stage: str, done: int, total: int, unit: str
) -> ProgressCallback:
    """Return the callback for a function that does one unit of larger work.

    Args:
        callback: receives the events.
        stage: name of that unit; the inner stage, detail and count become the detail.
        done: units finished before it.
        total: units in all.
        unit: what is counted.

    >>> inner = nested_progress(print, "batch", 1, 3, "norms")
    >>> inner(Progress("ramp", done=5, total=9, unit="steps"))
    batch, ramp, 5 of 9 steps, 1 of 3 norms
    """

    def send(event: Progress) -> None:
        callback(Progress(stage, str(event), done, total, unit))

    return send
