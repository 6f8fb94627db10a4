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

    What was found in a store is done: a tour that goes on begins where the last one ended. It says
    how many parts it found there and what share of the whole those are, since they took no time and
    say nothing of the pace.

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
        '35 % done (1 part kept: 35 %); landscape: batch; seed 1; step 1'
        >>> told[1]
        '70 % done (1 part kept: 35 %); depth: batch; seed 0'
    """

    def __init__(self, progress: Progress, shares: int) -> None:
        self._progress = progress
        self._own, self._all = 0, shares  # what this run computed, of the whole
        self._kept, self._parts = 0, 0  # shares found in a store, and how many parts they are

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
            done = self._words(self._own + begun)
            # no comma: a log takes what stands before one for the name of a part
            self._progress("; ".join(filter(None, (done, f"{kind}: {first}", *further, text))))

        yield tell
        if begun < 0:
            self._kept, self._parts = self._kept + share, self._parts + 1
        else:
            self._own += share

    def _words(self, own: int) -> str:
        """The share of the whole that is done, and what part of it was kept."""
        done = 100 * (own + self._kept) // self._all
        if not self._kept:
            return f"{done} % done"
        kept = done - 100 * own // self._all  # the rest is this run's, and never falls
        return f"{done} % done ({self._parts} part{'' if self._parts == 1 else 's'} kept: {kept} %)"
