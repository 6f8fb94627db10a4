"""How far the tour is: parts that take longer count for more steps of the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from normscope.experiments.recipe import Progress

__all__ = ["SHARES", "Pace"]

# Steps of the bar for each part of the kind, about in proportion to the time it takes.
SHARES = {
    "learning rate": 8,
    "training": 1,
    "landscape": 5,
    "curvature": 12,
    "depth": 1,
    "theorems": 20,
    "phase diagram": 30,
}


class Pace:
    """Calls the progress as often for each part as its share says, whatever the part itself tells.

    Args:
        progress: called with a label.

    Examples:
        >>> told = []
        >>> with Pace(told.append).part("landscape", "batch") as tell:
        ...     tell("step 1")
        >>> len(told) == SHARES["landscape"], told[:2]
        (True, ['landscape: batch', 'landscape: batch, step 1'])
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @contextmanager
    def part(self, kind: str, what: str) -> Iterator[Callable[[str], None]]:
        """One part of the tour.

        Args:
            kind: a name of ``SHARES``.
            what: which of them.

        Yields:
            A function to tell what the part is at.
        """
        left, label = SHARES[kind], f"{kind}: {what}"

        def tell(text: str) -> None:
            nonlocal left
            if left:
                left -= 1
                self._progress(f"{label}, {text}" if text else label)

        tell("")
        yield tell
        while left:
            tell("")
