"""How far the tour is: parts that take longer count for more of the whole."""

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
    """Tells the progress how much of the whole is done, in per cent, and what is on.

    What was found in a store is done: a tour that goes on begins where the last one ended, and says
    how many parts it found there.

    Args:
        progress: called with a text.
        shares: of the whole.

    Examples:
        >>> told = []
        >>> pace = Pace(told.append, 20)
        >>> with pace.part("landscape", "batch", "seed 0"):  # it says nothing: it was there
        ...     pass
        >>> with pace.part("landscape", "batch", "seed 1") as tell:
        ...     tell("step 1")
        >>> with pace.part("depth", "batch", "seed 0") as tell:
        ...     tell("")
        >>> told[0]
        '35 % done (1 part kept); landscape: batch; seed 1; step 1'
        >>> told[1]
        '70 % done (1 part kept); depth: batch; seed 0'
    """

    def __init__(self, progress: Progress, shares: int) -> None:
        self._progress = progress
        self._done, self._all = 0, shares
        self._kept, self._is_own = 0, False  # parts found before the first that this run computes

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
            self._is_own = True
            begun = min(begun + 1, share - 1)  # it is not done before it ends
            done = f"{100 * (self._done + begun) // self._all} % done{self._found()}"
            # no comma: a log takes what stands before one for the name of a part
            self._progress("; ".join(filter(None, (done, f"{kind}: {first}", *further, text))))

        yield tell
        self._done += share
        self._kept += not self._is_own

    def _found(self) -> str:
        if not self._kept:
            return ""
        return f" ({self._kept} part{'' if self._kept == 1 else 's'} kept)"
