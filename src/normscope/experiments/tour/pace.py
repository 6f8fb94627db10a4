"""How far the tour is: parts that take longer count for more shares of the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from normscope.experiments.recipe import Progress

__all__ = ["SHARES", "Pace", "all_shares"]

# Shares of each part of the kind: tenths of a second that it takes at small scale on one core.
SHARES = {
    "learning rate": 18,
    "training": 2,
    "landscape": 7,
    "curvature": 19,
    "depth": 1,
    "theorems": 54,
    "phase diagram": 25,
}


def all_shares(norms: int, seeds: int) -> int:
    """The shares of a whole tour of so many normalizations and seeds."""
    for_each = ("learning rate", "training", "training", "landscape", "depth")
    return (
        norms * seeds * sum(SHARES[kind] for kind in for_each)
        + norms * SHARES["curvature"]
        + seeds * SHARES["depth"]  # with skips
        + SHARES["theorems"]
        + SHARES["phase diagram"]
    )


class Pace:
    """Tells the progress how many shares of the work are done, of how many, and what is on.

    What was found in a store is no work of this run: it counts neither as done nor as to do, so
    that the time left can be told from the time so far.

    Args:
        progress: called with a text.
        shares: of the whole.

    Examples:
        >>> told = []
        >>> pace = Pace(told.append, 20)
        >>> with pace.part("landscape", "batch", "seed 0") as tell:
        ...     tell("step 1")
        >>> with pace.part("landscape", "batch", "seed 1"):  # it says nothing: it was there
        ...     pass
        >>> with pace.part("depth", "batch", "seed 0") as tell:
        ...     tell("")
        >>> told[0]
        '0 of 20 shares of the work; landscape: batch; seed 0; step 1'
        >>> told[1]
        '7 of 13 shares of the work; depth: batch; seed 0'
    """

    def __init__(self, progress: Progress, shares: int) -> None:
        self._progress = progress
        self._done, self._all = 0, shares

    @contextmanager
    def part(self, kind: str, *what: str) -> Iterator[Callable[[str], None]]:
        """One part of the tour.

        Args:
            kind: a name of ``SHARES``.
            *what: which of them.

        Yields:
            A function to tell what the part is at; what never calls it was found in a store.
        """
        share, begun = SHARES[kind], -1
        first, *further = what

        def tell(text: str) -> None:
            nonlocal begun
            begun = min(begun + 1, share - 1)  # it is not done before it ends
            count = f"{self._done + begun} of {self._all} shares of the work"
            # no comma: a log takes what stands before one for the name of a part
            self._progress("; ".join(filter(None, (count, f"{kind}: {first}", *further, text))))

        yield tell
        if begun < 0:
            self._all -= share
        else:
            self._done += share
