"""The onset of instability found by short runs on copies: a ramp to bracket it, then bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from normscope.errors import StateError
from normscope.learning_rate.copies import Workbench
from normscope.learning_rate.onset import ORDERS, STEPS, TOLERANCE, Trial, trial
from normscope.learning_rate.verified import Verification

__all__ = ["BUDGET", "verified_onset"]

Tell = Callable[[str], None]
BUDGET = 6 * STEPS  # gradients in all: six range tests of 100 steps
_RAMP_START = 1 / 8  # of the guess
_RAMP_GROWTH = 1.08  # per step: 2200 times in 100 steps
_LATE = 2.0  # a ramp shows an instability about this factor above the rate that makes it
_WIDENING = 1.6  # between runs until the onset is enclosed
_SUSPICIOUS = 6  # failures in a row, a factor of 17 in all, before the data are looked at


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
    tried. An unstable run ends at once, so that only stable ones cost 100 steps.

    A net without normalization may also die: its loss stays where it is, which is not unstable. It
    may break at a lower rate all the same, so that from a rate at which it dies the search goes
    down, until the net holds, before it goes up. Where it dies below the onset, the rates around
    its death are halved last.

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
    search.go_down(end / _LATE)
    search.go_up()
    search.halve(search.around_onset)
    search.halve(search.around_death)
    low, high = search.around_onset()
    return Verification(low, high, tuple(search.trials), search.ramps)


class _Verdict(Enum):
    """On a learning rate, over several orders of the data."""

    HELD = "held"
    DIED = "died"
    UNSTABLE = "unstable"


@dataclass
class _Search:
    bench: Workbench
    budget: int
    tell: Tell
    trials: list[Trial] = field(default_factory=list)
    verdicts: dict[float, _Verdict] = field(default_factory=dict)
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

    def judge(self, rate: float) -> _Verdict:
        """Two orders of the data that agree settle it, or a late instability.

        A death says nothing of whether the net would break: of several orders that differ, those
        that died are not counted.
        """
        unstable = held = died = 0
        while self.left >= STEPS and max(unstable, held + died) < self.enough:
            done = self.run(rate, order=unstable + held + died)
            if done.unstable:
                unstable += self.enough if done.is_late else 1
            else:
                held, died = held + (not done.died), died + done.died
        if unstable and unstable >= held:  # one each, or the steps ran out: be careful
            self.verdicts[rate] = _Verdict.UNSTABLE
        else:
            self.verdicts[rate] = _Verdict.DIED if died else _Verdict.HELD
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

    def go_down(self, rate: float) -> None:
        """From a rate to one that holds."""
        tried = 0
        while self.left >= STEPS and self.judge(rate) is not _Verdict.HELD:
            tried, rate = tried + 1, rate / _WIDENING
            if tried == _SUSPICIOUS or self.left < 2 * STEPS:
                self._check_standstill()

    def go_up(self) -> None:
        """From the largest rate tried to one that is unstable, if none was."""
        while self.left >= STEPS and _Verdict.UNSTABLE not in self.verdicts.values():
            self.judge(max(self.verdicts) * _WIDENING)

    def _check_standstill(self) -> None:
        """Refuse data on which even a net that is not trained counts as unstable.

        Asked of the order that failed last: on another one the batches may differ less.
        """
        runs = self.trials[self.ramps :]
        last = next((each for each in reversed(runs) if each.unstable), None)
        if last is None or self.left < STEPS:
            return
        if self.run(0.0, last.order - self.bench.seed).unstable:
            raise StateError(
                f"the loss of one batch is {self.trials[-1].worst:.3g} times that of the first "
                "without any training, so that short runs cannot tell what is unstable; take "
                "larger batches of mixed samples, or ask with verify=False."
            )

    def halve(self, ends: Callable[[], tuple[float, float]]) -> None:
        """Try the middle of two ends until they are within the tolerance."""
        while self.left >= STEPS:
            low, high = ends()
            if low == 0 or not math.isfinite(high) or high <= low * (1 + TOLERANCE):
                return
            self.judge(math.sqrt(low * high))

    def around_onset(self) -> tuple[float, float]:
        """The largest rate that was not unstable below the smallest that was, and that one."""
        return self._around({_Verdict.UNSTABLE})

    def around_death(self) -> tuple[float, float]:
        """The largest rate that held below the smallest that did not, and that one."""
        return self._around({_Verdict.UNSTABLE, _Verdict.DIED})

    def _around(self, failures: set[_Verdict]) -> tuple[float, float]:
        failed = (rate for rate, verdict in self.verdicts.items() if verdict in failures)
        high = min(failed, default=math.inf)
        held = (rate for rate, v in self.verdicts.items() if v not in failures and rate < high)
        return max(held, default=0.0), high
