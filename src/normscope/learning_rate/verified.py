"""What the short runs of an advice showed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normscope.learning_rate.onset import Trial

__all__ = ["Verification"]

_MARGIN = 2.0  # below the lowest failure, if the curvature did not foresee it


@dataclass(frozen=True)
class Verification:
    """What the short runs showed.

    Args:
        low: the largest learning rate that was not unstable below the smallest that was.
        high: the smallest that was unstable; infinite if none was.
        trials: every run, in order; the ramps first.
        ramps: how many of them were ramps.
    """

    low: float
    high: float
    trials: tuple[Trial, ...]
    ramps: int

    @property
    def onset(self) -> float:
        """The best single value, by the definition: the middle, on a logarithmic scale."""
        return _middle(self.low, self.high)

    @property
    def fatal(self) -> float:
        """The smallest rate at which the net died, on whichever order; infinite if it never did."""
        return min((each.rate for each in self._runs if each.died), default=math.inf)

    @property
    def died_first(self) -> bool:
        """Whether the net died at a rate below those that are unstable.

        The loss of a dead net stays where it is, and is stable by the definition of the onset.
        Nobody wants to be sent there: what the net can take ends where it dies.
        """
        return self.fatal < self.high

    @property
    def ends(self) -> tuple[float, float]:
        """The largest rate that a net can take and the smallest that it cannot, of those tried."""
        if not self.died_first:
            return self.low, self.high
        alive = (each.rate for each in self._runs if not each.failed and each.rate < self.fatal)
        return max(alive, default=0.0), self.fatal

    @property
    def limit(self) -> float:
        """The onset, or less where the net dies before: the middle of the ends."""
        return _middle(*self.ends)

    @property
    def lowest_failure(self) -> float:
        """The smallest rate at which any run failed, on whichever order; infinite if none did."""
        return min((each.rate for each in self._runs if each.failed), default=math.inf)

    @property
    def spread(self) -> float:
        """By how much the orders differ: the largest rate that held over the lowest failure.

        It is 1 if every run that held is below every run that failed.
        """
        held = max((each.rate for each in self._runs if not each.failed), default=0.0)
        return max(1.0, held / self.lowest_failure)

    def lowered_bound(self, bound: float) -> float:
        """What is left of a bound from the curvature once the runs are known.

        Args:
            bound: a learning rate.

        Returns:
            The bound if no run failed below it, but not above the limit. Otherwise the curvature
            has proved blind, and the answer is below every rate at which a run failed: by a factor
            of two, or by what the orders of the data differ by if that is more.
        """
        if self.lowest_failure >= bound:
            return min(bound, self.limit)
        return min(self.lowest_failure, self.limit) / max(_MARGIN, self.spread)

    @property
    def steps(self) -> int:
        """Gradients taken in all runs."""
        return sum(each.steps for each in self.trials)

    @property
    def _runs(self) -> tuple[Trial, ...]:
        return self.trials[self.ramps :]

    def _repr_html_(self) -> str:
        from normscope.results.notebook import table_html

        rows = [
            {"kind": "ramp" if place < self.ramps else "fixed rate", **vars(each)}
            for place, each in enumerate(self.trials)
        ]
        end = "no instability found" if math.isinf(self.high) else f"no longer at {self.high:.3g}"
        return table_html(rows, f"Stable up to {self.low:.3g}, {end}")


def _middle(low: float, high: float) -> float:
    """On a logarithmic scale; the end that was found if there is but one."""
    if low == 0:
        return high
    return math.sqrt(low * high) if math.isfinite(high) else low
