"""The stability limit found by short runs: enclosed by a few, or bisected by many."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum

from normscope.errors import StateError
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.stability import ShortRun
from normscope.learning_rate.thresholds import (
    BRACKET_FAILURES,
    BRACKET_START,
    BRACKET_WIDENING,
    EFFORTS,
    FAILURE_MARGIN,
    FAR_FACTOR,
    FAR_GROWTH,
    LEAST_FAILURE_STEPS,
    LEAST_STEPS,
    LIMIT_TOLERANCE,
    ONE_ORDER_MARGIN,
    RAMP_DELAY,
    RAMP_FACTOR,
    RAMP_GROWTH,
    RAMP_RESTART,
    RAMP_START,
    RAMP_TRIES,
    SEARCH_FAILURES,
    SECOND_MOMENT_STEPS,
    SHORT_MARGIN,
    STEPS,
    WIDENING,
)
from normscope.progress import Progress, ProgressCallback, ignore_progress
from normscope.text import Rendered, Table


@dataclass(frozen=True)
class Verification(Rendered):
    """The outcome of the short runs.

    Args:
        low: the largest learning rate that was not unstable below the smallest that was.
        high: the smallest that was unstable; infinite if none was.
        all_runs: every run, in order; the ramps first.
        ramps: how many of them were ramps.
        margin: factor by which the ends of the interval may be off on other data orders.
        short_margin: factor by which a rate that held for fewer than 100 steps may be too high.
    """

    low: float
    high: float
    all_runs: tuple[ShortRun, ...]
    ramps: int
    margin: float = 1.0
    short_margin: float = SHORT_MARGIN

    @property
    def runs(self) -> tuple[ShortRun, ...]:
        """The runs at fixed rates."""
        return self.all_runs[self.ramps :]

    @property
    def onset(self) -> float:
        """The limit by the definition of `is_unstable`: the geometric mean of low and high."""
        return _middle(self.low, self.high)

    @property
    def lowest_collapse(self) -> float:
        """The smallest rate at which a run collapsed, on any data order; infinite if none did."""
        return min((each.rate for each in self.runs if each.died), default=math.inf)

    @property
    def collapsed_first(self) -> bool:
        """Whether the network collapsed at a rate below the unstable ones.

        Its loss is then constant, hence stable by the definition, but nothing is learned.
        """
        return self.lowest_collapse < self.high

    @property
    def ends(self) -> tuple[float, float]:
        """The largest usable rate and the smallest unusable one, of those tried."""
        if not self.collapsed_first:
            return self.low, self.high
        usable = (run.rate for run in self.runs if not run.failed)
        below = (rate for rate in usable if rate < self.lowest_collapse)
        return max(below, default=0.0), self.lowest_collapse

    @property
    def interval(self) -> tuple[float, float]:
        """The ends, moved apart by what the runs do not show.

        Runs on one data order may be off on others by `margin`. A rate that held for fewer than 100
        steps may fail later, and may be too high by `short_margin`. A failure of any run, ramps
        included, is above the lower end.
        """
        low, high = self.ends
        longest = max((each.steps for each in self.runs if each.rate == low), default=STEPS)
        held = low if longest >= STEPS else low / self.short_margin
        return min(held / self.margin, self.known_failure), high * self.margin

    @property
    def limit(self) -> float:
        """The geometric mean of the ends: below `onset` if the network collapses first."""
        return _middle(*self.ends)

    @property
    def lowest_failure(self) -> float:
        """The smallest rate at which any run failed, on any data order; infinite if none did."""
        return min((each.rate for each in self.runs if each.failed), default=math.inf)

    @property
    def known_failure(self) -> float:
        """As `lowest_failure`, with the last rates of the ramps that failed."""
        failed = (each.rate for each in self.all_runs[: self.ramps] if each.failed)
        return min(*failed, self.lowest_failure, math.inf)

    @property
    def spread(self) -> float:
        """The largest rate that held over the lowest failure; 1 if the data orders agree."""
        held = max((each.rate for each in self.runs if not each.failed), default=0.0)
        return max(1.0, held / self.lowest_failure)

    def lowered_bound(self, bound: float) -> float:
        """Return a curvature bound, lowered if a run failed below it.

        Args:
            bound: a learning rate.

        Returns:
            The bound if no run failed below it, but at most the limit, or the lower end of the
            interval if few runs enclose it. Otherwise the lower of the lowest failure and the
            limit, divided by two, or by `spread` if that is more.
        """
        if self.lowest_failure >= bound:
            enclosed = self.margin == 1 or not self.interval[0]
            return min(bound, self.limit if enclosed else self.interval[0])
        return min(self.lowest_failure, self.limit) / max(FAILURE_MARGIN, self.spread)

    @property
    def steps(self) -> int:
        """Gradients taken in all runs."""
        return sum(each.steps for each in self.all_runs)

    def _table(self) -> Table:
        rows = [
            {"kind": "ramp" if number < self.ramps else "fixed rate", **each.summary()}
            for number, each in enumerate(self.all_runs)
        ]
        end = "no instability found" if math.isinf(self.high) else f"no longer at {self.high:.3g}"
        return Table(rows, f"Stable up to {self.low:.3g}, {end}")


def _middle(low: float, high: float) -> float:
    """Return the geometric mean, or the end that was found if there is but one."""
    if low == 0:
        return high
    return math.sqrt(low * high) if math.isfinite(high) else low


def verify_limit(
    setup: TrainingSetup,
    guess: float,
    progress: ProgressCallback = ignore_progress,
    budget: int = EFFORTS["thorough"].limit_steps,
) -> Verification:
    """Find the stability limit by short training runs, after which the model is restored.

    Every run starts from the user's weights and optimizer state. First the learning rate grows by
    8 % a step until the loss is unstable; then runs at fixed rates enclose the limit and bisect it
    to 5 % or until the budget is used. A rate fails if it does on two of three data orders, so that
    the median of their limits counts: on small batches one order may fail late at any rate, by a
    single batch with a large loss. An unstable run ends at once, so that only stable ones cost 100
    steps.

    A network without normalization may also collapse, which is not unstable. It may be unstable at
    a lower rate all the same, so the search first goes down to a rate that holds, before it goes
    up. Where the network collapses below the limit, the rates around that are bisected last.

    Args:
        setup: the problem with its optimizer and batch size.
        guess: a learning rate near the limit.
        progress: receives an event before each run.
        budget: largest number of gradients.

    Returns:
        The enclosing rates and all runs. If the budget ended before two data orders agreed on one
        of these rates, the interval is wider by the margin of one order.

    Raises:
        StateError: if the losses of untrained batches differ by more than the limit of growth.
    """
    search = _Search(setup, budget, progress)
    end = search.ramp(guess * RAMP_START)
    search.go_down(end / RAMP_DELAY)
    search.go_up()
    search.bisect({_Verdict.UNSTABLE})
    search.bisect({_Verdict.UNSTABLE, _Verdict.COLLAPSED})
    low, high = search.enclosing({_Verdict.UNSTABLE})
    found = Verification(low, high, tuple(search.all_runs), search.ramps)
    if search.undecided.isdisjoint({low, high, *found.ends}):
        return found
    return replace(found, margin=ONE_ORDER_MARGIN)


def bracket_limit(
    setup: TrainingSetup,
    guess: float,
    progress: ProgressCallback = ignore_progress,
    budget: int = EFFORTS["default"].limit_steps,
    is_near: bool = True,
    last: int = 0,
) -> Verification:
    """Enclose the stability limit by a few short runs on one data order.

    The rates decrease from twice the guess until one holds; unstable runs end at once, so that
    nearly all steps are those of the rate that holds. If the first rate holds, they increase.
    Without a good guess a ramp comes first, as in `verify_limit`.

    Args:
        setup: the problem with its optimizer and batch size.
        guess: a learning rate near the limit.
        progress: receives an event before each run.
        budget: largest number of gradients, without those of a ramp.
        is_near: whether no ramp is needed, as for a prediction of the limit.
        last: steps that the last run may take beyond the budget, so that it can be used again.

    Returns:
        The enclosing rates, a factor of 1.6 apart if the budget suffices, and all runs.

    Raises:
        StateError: if the losses of untrained batches differ by more than the limit of growth.
    """
    if setup.has_second_moment:
        budget = min(budget, SECOND_MOMENT_STEPS)
    search = _Search(
        *(setup, budget, progress),
        orders=1,
        least=LEAST_STEPS,
        last=last,
        failures=BRACKET_FAILURES,
        widening=BRACKET_WIDENING,
    )
    start = guess * BRACKET_START
    if not is_near:
        search.budget += STEPS
        start = search.ramp(guess * RAMP_START) / RAMP_DELAY
    search.go_down(start)
    search.go_up()
    search.bisect({_Verdict.UNSTABLE}, WIDENING - 1 + 1e-9)
    low, high = search.enclosing({_Verdict.UNSTABLE})
    margin = ONE_ORDER_MARGIN if setup.orders_differ else 1.0
    return Verification(low, high, tuple(search.all_runs), search.ramps, margin)


class _Verdict(Enum):
    """On a learning rate, over several data orders."""

    HELD = "held"
    COLLAPSED = "collapsed"
    UNSTABLE = "unstable"


@dataclass
class _Search:
    setup: TrainingSetup
    budget: int
    progress: ProgressCallback
    all_runs: list[ShortRun] = field(default_factory=list)
    verdicts: dict[float, _Verdict] = field(default_factory=dict)
    undecided: set[float] = field(default_factory=set)  # too few orders agreed: out of steps
    ramps: int = 0
    orders: int = 2  # that must agree on a rate
    least: int = STEPS  # steps that must be left to begin a run
    last: int = 0  # steps of the last run, if a higher rate failed: it may exceed the budget
    failures: int = SEARCH_FAILURES  # in a row, after which the data is checked
    widening: float = WIDENING  # of rates that all held

    @property
    def left(self) -> int:
        return self.budget - sum(each.steps for each in self.all_runs)

    def _report(self, what: str) -> None:
        """Report that a run begins, and how much of the budget is used."""
        used, run = self.budget - self.left, f"run {len(self.all_runs) + 1}{what}"
        self.progress(Progress("short runs", run, used, self.budget, "steps", "bound"))

    def ramp(self, start: float) -> float:
        """Return the learning rate at which a growing one failed, or the last one tried."""
        self._report(f": ramp from {start:.3g}")
        done = self.setup.short_run(
            start, min(STEPS, self.left), rate_at=lambda step: start * RAMP_GROWTH**step
        )
        self.all_runs.append(done)
        self.ramps += 1
        if done.failed and done.steps <= RAMP_RESTART and self.ramps < RAMP_TRIES:
            return self.ramp(start / RAMP_FACTOR)  # it started too high
        return done.rate

    def judge(self, rate: float, least: int | None = None) -> _Verdict:
        """Run until two of three data orders agree.

        A collapse does not show whether the run would be unstable: if orders differ, those that
        collapsed do not count.
        """
        enough = self.orders if self.setup.orders_differ else 1
        unstable = held = collapsed = 0
        least = self.least if least is None else least
        while self.left >= least and max(unstable, held + collapsed) < enough:
            done = self.run(rate, order=unstable + held + collapsed)
            if done.unstable:
                unstable += 1
            else:
                held, collapsed = held + (not done.died), collapsed + done.died
        if max(unstable, held + collapsed) < enough:
            self.undecided.add(rate)
        if unstable and unstable >= held:  # one each, or out of steps: be careful
            self.verdicts[rate] = _Verdict.UNSTABLE
        else:
            self.verdicts[rate] = _Verdict.COLLAPSED if collapsed else _Verdict.HELD
        return self.verdicts[rate]

    def run(self, rate: float, order: int, steps: int = STEPS) -> ShortRun:
        """Run at a fixed rate on one data order; at 0 nothing is trained."""
        self._report(f" at {rate:.3g}" if rate else ": the losses without training")
        has_failed = any(each is not _Verdict.HELD for each in self.verdicts.values())
        left = max(self.left, self.last if has_failed else 0)
        done = self.setup.short_run(rate, min(steps, left), order=order)
        self.all_runs.append(done)
        return done

    def go_down(self, rate: float) -> None:
        """Decrease a rate until it holds; after several failures check the data."""
        tried, least = 0, 1 if self.last else self.least
        while self.left >= least and self.judge(rate, least) is not _Verdict.HELD:
            tried, rate = tried + 1, rate / self._factor_below()
            if tried == self.failures or (self.orders > 1 and self.left < 2 * STEPS):
                self._check_untrained()

    def _factor_below(self) -> float:
        """Return by how much to decrease a rate that failed.

        More if every data order failed late, which costs many steps. A bracket of few runs takes
        more if the loss exploded, if it did not come back with a second moment, which takes 50
        steps to see, or if the network collapsed, which takes 20.
        """
        last = self.all_runs[-1]
        if self.orders > 1:
            runs = (run for run in self.all_runs[self.ramps :] if run.rate == last.rate)
            return BRACKET_WIDENING if all(run.is_late for run in runs) else WIDENING
        if last.unstable and (not last.worst <= FAR_GROWTH or self.setup.has_second_moment):
            return FAR_FACTOR
        return BRACKET_WIDENING if last.died else WIDENING

    def go_up(self) -> None:
        """Increase the largest rate until one is unstable, if none was."""
        least = LEAST_FAILURE_STEPS if self.orders == 1 else self.least
        while self.left >= least and _Verdict.UNSTABLE not in self.verdicts.values():
            rate = max(self.verdicts) * self.widening
            few = self.left < self.least
            if self.judge(rate, least) is not _Verdict.UNSTABLE and few:
                del self.verdicts[rate]  # so few steps do not show that a rate holds
                return

    def _check_untrained(self) -> None:
        """Reject data on which even an untrained network counts as unstable.

        The data order that failed last is used: on another one the batches may differ less.
        """
        runs = self.all_runs[self.ramps :]
        last = next((each for each in reversed(runs) if each.unstable), None)
        steps = STEPS if self.orders > 1 or last is None else last.steps
        if last is None or self.left < steps:
            return
        if self.run(0.0, last.order - self.setup.seed, steps).unstable:
            raise StateError(
                f"the loss of one batch is {self.all_runs[-1].worst:.3g} times that of the first "
                "without any training, so that short runs cannot detect instability; use larger "
                "batches of mixed samples, or verify=False."
            )

    def bisect(self, failures: set[_Verdict], tolerance: float = LIMIT_TOLERANCE) -> None:
        """Try the geometric mean of the enclosing rates until they are within the tolerance."""
        while self.left >= self.least:
            low, high = self.enclosing(failures)
            if low == 0 or not math.isfinite(high) or high <= low * (1 + tolerance):
                return
            self.judge(math.sqrt(low * high))

    def enclosing(self, failures: set[_Verdict]) -> tuple[float, float]:
        """Return the largest rate that did not fail below the smallest that did, and that one."""
        failed = (rate for rate, verdict in self.verdicts.items() if verdict in failures)
        high = min(failed, default=math.inf)
        held = (rate for rate, v in self.verdicts.items() if v not in failures and rate < high)
        return max(held, default=0.0), high
