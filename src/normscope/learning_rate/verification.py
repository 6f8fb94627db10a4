"""The onset of instability found by short runs on copies: a ramp to bracket it, then bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from normscope.errors import StateError
from normscope.learning_rate.copies import Workbench
from normscope.learning_rate.onset import ORDERS, STEPS, TOLERANCE, Trial, trial

__all__ = ["BUDGET", "Verification", "verified_onset"]

Tell = Callable[[str], None]
BUDGET = 6 * STEPS  # gradients in all: six range tests of 100 steps
_RAMP_START = 1 / 8  # of the guess
_RAMP_GROWTH = 1.08  # per step: 2200 times in 100 steps
_LATE = 2.0  # a ramp shows an instability about this factor above the rate that makes it
_WIDENING = 1.6  # between runs until the onset is enclosed
_MARGIN = 2.0  # below the lowest failure, if the curvature did not foresee it
_SUSPICIOUS = 6  # failures in a row, a factor of 17 in all, before the data are looked at


@dataclass(frozen=True)
class Verification:
    """What the short runs showed.

    Args:
        low: the largest learning rate that did not fail below the smallest that did.
        high: the smallest that failed, by an instability or because the net died; infinite if
            none did.
        trials: every run, in order; the ramps first.
        ramps: how many of them were ramps.
    """

    low: float
    high: float
    trials: tuple[Trial, ...]
    ramps: int

    @property
    def onset(self) -> float:
        """The best single value: the middle, on a logarithmic scale."""
        if self.low == 0:
            return self.high
        return math.sqrt(self.low * self.high) if math.isfinite(self.high) else self.low

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

    def safe_below(self, bound: float) -> float:
        """What is left of a bound from the curvature once the runs are known.

        Args:
            bound: a learning rate.

        Returns:
            The bound if no run failed below it. Otherwise the curvature has proved blind, and the
            answer is below every rate at which a run failed: by a factor of two, or by what the
            orders of the data differ by if that is more.
        """
        if self.lowest_failure >= bound:
            return bound
        return min(self.lowest_failure, self.onset) / max(_MARGIN, self.spread)

    @property
    def _runs(self) -> tuple[Trial, ...]:
        return self.trials[self.ramps :]

    @property
    def died(self) -> bool:
        """Whether the net died at the smallest rate that failed, rather than being unstable."""
        failures = [each for each in self._runs if each.failed and each.rate == self.high]
        return bool(failures) and all(each.died for each in failures)

    @property
    def steps(self) -> int:
        """Gradients taken in all runs."""
        return sum(each.steps for each in self.trials)

    def _repr_html_(self) -> str:
        from normscope.results.notebook import table_html

        rows = [
            {"kind": "ramp" if place < self.ramps else "fixed rate", **vars(each)}
            for place, each in enumerate(self.trials)
        ]
        return table_html(rows, f"Stable up to {self.low:.3g}, no longer at {self.high:.3g}")


def verified_onset(
    bench: Workbench, guess: float, tell: Tell = lambda text: None, budget: int = BUDGET
) -> Verification:
    """Find the onset by training copies for a short while.

    Every run starts from the user's weights and optimizer state. First the learning rate grows by
    8 % a step until the loss is unstable; then runs at fixed rates enclose the onset and halve the
    interval until it is within 5 % or the steps are used up. A rate fails if it does on two of
    three orders of the data, as the median of their onsets demands; or if a run fails late on one,
    which is chance (`Trial.is_late`): the onset of an order is the smallest rate that breaks it,
    and where chance breaks some runs at one rate, it breaks others at lower ones that are not
    tried. An unstable run ends at once, so that only stable ones cost 100 steps. A run whose net
    dies fails too: a net without normalization may break at one rate and die at a higher one,
    where its loss stays constant, and nobody wants to be sent there.

    Args:
        bench: the problem with its optimizer and batch size.
        guess: a learning rate near the onset.
        tell: called with a text as each run begins.
        budget: gradients to take at most.

    Returns:
        The enclosing rates and all runs.

    Raises:
        StateError: if the batches' losses differ by more than an instability would make them.
    """
    search = _Search(bench, budget, tell)
    end = search.ramp(guess * _RAMP_START)
    search.enclose(end / _LATE)
    search.halve()
    low, high = search.ends()
    return Verification(low, high, tuple(search.trials), search.ramps)


@dataclass
class _Search:
    bench: Workbench
    budget: int
    tell: Tell
    trials: list[Trial] = field(default_factory=list)
    verdicts: dict[float, bool] = field(default_factory=dict)
    ramps: int = 0

    @property
    def left(self) -> int:
        return self.budget - sum(each.steps for each in self.trials)

    def _say(self, what: str) -> None:
        """Tell that a run begins, and how much of the budget is gone: it bounds the time left."""
        used = f"({self.budget - self.left} of at most {self.budget} steps)"
        self.tell(f"run {len(self.trials) + 1}{what} {used}")

    def ramp(self, start: float) -> float:
        """The learning rate at which a growing one failed, or the last one tried."""
        self._say(f": ramp from {start:.3g}")
        with self.bench.rehearsal(start) as (problem, optimizer):
            done = trial(
                problem,
                optimizer,
                self.bench.batch_size,
                self.bench.seed,
                min(STEPS, self.left),
                rate_at=lambda step: start * _RAMP_GROWTH**step,
            )
        self.trials.append(done)
        self.ramps += 1
        if done.failed and done.steps <= 6 and self.ramps < 4:
            return self.ramp(start / 64)  # it began too high to tell
        return done.rate

    def fails(self, rate: float) -> bool:
        """Whether a rate fails: two orders of the data that agree settle it, or a late failure."""
        failed = held = 0
        while self.left >= STEPS and failed < self.enough and held < self.enough:
            done = self.run(rate, order=failed + held)
            if done.failed:
                failed += self.enough if done.is_late else 1
            else:
                held += 1
        self.verdicts[rate] = failed >= held  # one each where the steps ran out: be careful
        return self.verdicts[rate]

    @property
    def enough(self) -> int:
        """Runs that must agree; one where every order gives the same batches."""
        return ORDERS // 2 + 1 if self.bench.orders_differ else 1

    def run(self, rate: float, order: int) -> Trial:
        """A run at a fixed rate on one order of the data; at 0 nothing is trained."""
        self._say(f" at {rate:.3g}" if rate else ": the losses without training")
        with self.bench.rehearsal(rate) as (problem, optimizer):
            done = trial(problem, optimizer, self.bench.batch_size, self.bench.seed + order)
        self.trials.append(done)
        return done

    def enclose(self, rate: float) -> None:
        """Go down from a rate that fails to one that does not, or up."""
        failed = 0
        went_up = False
        while self.left >= STEPS and not (failed and went_up):
            if self.fails(rate):
                failed, rate = failed + 1, rate / _WIDENING
            else:
                went_up, rate = True, rate * _WIDENING
            if not went_up and (failed == _SUSPICIOUS or self.left < 2 * STEPS):
                self._check_standstill()

    def _check_standstill(self) -> None:
        """Refuse data on which even a net that is not trained counts as unstable.

        Asked of the order that failed last: on another one the batches may differ less.
        """
        last = next(each for each in reversed(self.trials) if each.failed)
        if self.left >= STEPS and self.run(0.0, last.order - self.bench.seed).failed:
            raise StateError(
                f"the loss of one batch is {self.trials[-1].worst:.3g} times that of the first "
                "without any training, so that short runs cannot tell what is unstable; take "
                "larger batches of mixed samples, or ask with verify=False."
            )

    def halve(self) -> None:
        while self.left >= STEPS:
            low, high = self.ends()
            if low == 0 or not math.isfinite(high) or high <= low * (1 + TOLERANCE):
                return
            self.fails(math.sqrt(low * high))

    def ends(self) -> tuple[float, float]:
        """The largest rate that did not fail below the smallest that did, and that one."""
        high = min((rate for rate, failed in self.verdicts.items() if failed), default=math.inf)
        held = (rate for rate, failed in self.verdicts.items() if not failed and rate < high)
        return max(held, default=0.0), high
