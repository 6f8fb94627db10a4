"""The cases of a test: their random numbers, the count of their outcomes, and their failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random


class Cases:
    """Some cases of one kind.

    Args:
        kind: named in the summary.
        seeds: one for each case.
        count: reports a kind, an outcome and a number for the summary.
    """

    def __init__(self, kind: str, seeds: Sequence[int], count: Callable[..., None]) -> None:
        self._kind, self._seeds, self._count = kind, seeds, count
        self._outcomes: Counter[str] = Counter()
        self._failures: list[str] = []

    def randoms(self) -> Iterator[tuple[str, Random]]:
        """Yield a label and a generator of random numbers for each case; fail if one failed."""
        for seed in self._seeds:
            yield f"{self._kind}, seed {seed}", Random(seed)
        for outcome, number in self._outcomes.items():
            self._count(self._kind, outcome, number)
        shown = "\n".join(self._failures[:20])
        assert not self._failures, f"{len(self._failures)} cases failed:\n{shown}"

    def end(self, outcome: str, failure: str = "") -> None:
        """Count one case.

        Args:
            outcome: for the summary.
            failure: what went wrong; "" if nothing did.
        """
        self._outcomes[outcome] += 1
        if failure:
            self._failures.append(failure)
