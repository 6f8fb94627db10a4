"""How the parts of work are counted, and what their texts tell of how far it is."""

from __future__ import annotations

import re

from normscope.cli.time_left import TimeLeft

__all__ = [
    "DONE_OF_ALL",
    "PARTS",
    "SHARE",
    "STEPS",
    "UNEVEN",
    "count_steps",
    "done_of_all",
    "grown",
    "is_timed",
    "part_of",
]

PARTS = "part {} of {}"  # how progress counts
UNEVEN = "part {} of some {}"  # a guess, of parts so unlike that they tell no time
DONE_OF_ALL = re.compile(r"\b(\d+) of (\d+)\b")
SHARE = re.compile(r"\b(\d+) % done\b(?: \(\d+ parts? kept: (\d+) %\))?")
_GUESS = "about"  # in how parts are counted: their number is a guess
STEPS = re.compile(r" ?\((\d+) of at most (\d+) steps\)")  # in a text: what bounds the time left


def is_timed(counted: str) -> bool:
    """Whether the parts tell the time left: those of a guess roughly, those of a bound not."""
    return counted == PARTS or _GUESS in counted


def grown(total: int | None, begun: int, counted: str) -> int | None:
    """The number of parts; a guess that the parts have reached is one more than they are.

    >>> grown(18, 17, "part {} of about {}"), grown(18, 18, "part {} of about {}")
    (18, 19)
    """
    is_guess = _GUESS in counted or counted == UNEVEN
    return max(total, begun + 1) if total and is_guess else total


def count_steps(text: str, left: TimeLeft, counted: str) -> bool:
    """Count the steps that a text tells of, at most so many; whether they tell the time."""
    steps = STEPS.search(text) if counted == UNEVEN else None
    if steps is not None:
        left.count(int(steps[1]), int(steps[2]), is_bound=True)
    return steps is not None


def part_of(text: str) -> str:
    """The name of the part that is on, if it has one.

    >>> part_of("batch (2 of 3), ramp from 0.1"), part_of("3 of 18 cells")
    ('batch (2 of 3)', '')
    """
    name, comma, _ = text.partition(", ")
    return name if comma else ""


def done_of_all(text: str) -> tuple[int | None, int | None]:
    """How far this run's own work is, if the text says so: what was kept is no part of it.

    >>> done_of_all("3 of 18 cells"), done_of_all("17 % done; 1 of 3"), done_of_all("reading")
    ((3, 18), (17, 100), (None, None))
    >>> done_of_all("60 % done (8 parts kept: 40 %)")
    (20, 60)
    """
    if share := SHARE.search(text):
        kept = int(share[2] or 0)
        return int(share[1]) - kept, 100 - kept
    counted = DONE_OF_ALL.search(text)
    return (int(counted[1]), int(counted[2])) if counted else (None, None)
