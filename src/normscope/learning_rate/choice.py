"""The learning rate that trains best: short trials at a ladder of rates below the limit."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from normscope.learning_rate.option_trials import OptionTrial, is_within_error
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.stability import ShortRun
from normscope.learning_rate.thresholds import (
    CHOICE_AVERAGED,
    CHOICE_DIVISOR,
    CHOICE_KEPT,
    CHOICE_LEARNED,
    CHOICE_SPACING,
    HORIZON_FACTOR,
    LARGEST_SHARE,
    STEPS,
    WIDENING,
    Effort,
)
from normscope.learning_rate.verification import Verification
from normscope.progress import Progress, ProgressCallback, ignore_progress
from normscope.text import Rendered, Table

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class RateTrial(Rendered):
    """One learning rate that was tried.

    Args:
        rate: the learning rate.
        steps: after which the loss was compared.
        loss: the mean over the last quarter of these steps; infinite if the run failed.
        reused: whether the run is one that verified the limit.
    """

    rate: float
    steps: int
    loss: float
    reused: bool = False


@dataclass(frozen=True)
class Choice(Rendered):
    """The rate that trains best, and what it was compared with.

    Args:
        rate: the learning rate.
        loss: of the nearest rate that was tried.
        steps: after which the rates were compared.
        trials: every rate at its longest run, in increasing order.
        spent: training steps beyond those that verified the limit.
        options: warm-up lengths and weight decays that were tried at the rate.
        learned: whether a rate lowered the loss.
        kept: smallest share of its norm that a weight had left at the nearest rate.
        untried: "higher" or "lower" if the best rate is the last one tried on that side, although
            the limit allows more; else empty.
    """

    rate: float
    loss: float
    steps: int
    trials: tuple[RateTrial, ...]
    spent: int
    options: tuple[OptionTrial, ...] = ()
    learned: bool = True
    kept: float = 1.0
    untried: str = ""

    @property
    def lowest(self) -> float:
        """The lowest rate tried."""
        return self.trials[0].rate

    @property
    def warmup(self) -> int | None:
        """Steps of the warm-up that is recommended; None if none was tried."""
        value = self._chosen("warmup")
        return None if value is None else int(value)

    @property
    def weight_decay(self) -> float | None:
        """The weight decay that is recommended; None if none was tried."""
        return self._chosen("weight_decay")

    def _chosen(self, option: str) -> float | None:
        chosen = (each.value for each in self.options if each.option == option and each.chosen)
        return next(chosen, None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers; None for the loss of a run that failed."""
        trials = [{**vars(each), "loss": _finite(each.loss)} for each in self.trials]
        options = [{**vars(each), "loss": _finite(each.loss)} for each in self.options]
        chosen = {"warmup": self.warmup, "weight_decay": self.weight_decay}
        lists = {"trials": trials, "options": options}
        return {**vars(self), "loss": _finite(self.loss), **lists, **chosen}

    def to_xarray(self) -> xr.Dataset:
        """Return the loss by rate, of the trials that were compared; NaN where a run failed."""
        import xarray as xr

        compared = [each for each in self.trials if each.steps == self.steps]
        losses = [each.loss if math.isfinite(each.loss) else math.nan for each in compared]
        return xr.Dataset(
            {"loss": ("rate", losses)},
            {"rate": [each.rate for each in compared]},
            {"chosen": self.rate, "steps": self.steps},
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the losses against the rates.

        Args:
            ax: where to draw; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.learning_rate import trial_losses

        return trial_losses(self.to_xarray(), ax)

    def _table(self) -> Table:
        return Table(trial_rows(self), f"Loss after {self.steps} steps; chosen {self.rate:.3g}")


def trial_rows(choice: Choice) -> list[dict[str, Any]]:
    """Return rate, loss and steps of each trial as rows of a table."""
    return [
        {"rate": f"{each.rate:.3g}", "loss": _finite(each.loss), "steps": each.steps}
        for each in choice.trials
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def choose_rate(
    setup: TrainingSetup,
    found: Verification,
    effort: Effort,
    predicted: float | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Choice | None:
    """Return the learning rate with the lowest loss after a few steps of training.

    All runs start from the user's weights and see the same batches, so that small differences of
    the loss count. The first rate is the largest that held; with a second moment a twentieth of
    the predicted limit, since the best rates of Adam are far below it, and a higher one is next.
    The next are higher or lower by a constant factor, wherever the loss is lower, until the best
    has neighbours on both sides or the steps are used up.
    With ``effort="thorough"`` the best of them are tried again with more steps. The result is at
    most half the limit and the lower end of its interval: rates near it break later, or on other
    data orders. Without a limit no rate above the largest that held is tried. While no rate lowers
    the loss, as on a plateau or with a weight decay that drives the weights to zero, lower ones are
    tried.

    Args:
        setup: the problem with its optimizer and batch size.
        found: the limit; its runs are used again.
        effort: what may be spent.
        predicted: the predicted limit, if there is one; with a second moment whatever stands for
            it, since its verified limit may be 40 times as high.
        progress: receives an event before each run.

    Returns:
        The rate and all trials; None if all of them failed.
    """
    first = _Ladder(setup, found, effort.choice_steps, _budget(found, effort), progress)
    first.climb(_first_rate(setup, found, predicted))
    last = first
    if effort.final_steps:
        # a schedule may have no more steps than a run that verifies the limit
        steps = effort.final_steps if setup.scheduler is None else min(effort.final_steps, STEPS)
        last = _Ladder(setup, found, steps, math.inf, progress)
        for rate in first.by_loss()[:CHOICE_KEPT]:
            last.measure(rate)
    held = [each for each in last.trials.values() if math.isfinite(each.loss)]
    if not held:
        return None
    rate = last.lowest() * (1.0 if effort.final_steps else HORIZON_FACTOR)
    if math.isfinite(found.ends[1]):
        rate = min(rate, found.limit * LARGEST_SHARE, found.interval[0] or math.inf)
    nearest = min(held, key=lambda each: abs(math.log(each.rate / rate)))
    trials = first.trials | last.trials
    ordered = tuple(trials[each] for each in sorted(trials))
    spent = first.spent + (0 if last is first else last.spent)
    kept = last.runs[nearest.rate].kept
    untried = first.untried_side(last.by_loss()[0])
    found_rate = Choice(rate, nearest.loss, nearest.steps, ordered, spent, kept=kept)
    return replace(found_rate, learned=last.has_learned(), untried=untried)


def _budget(found: Verification, effort: Effort) -> int:
    """Return the steps that the limit, without its ramps, has left; at least two trials."""
    spent = sum(run.steps for run in found.runs)
    return max(2 * effort.choice_steps, effort.total_steps - spent)


def _first_rate(setup: TrainingSetup, found: Verification, predicted: float | None) -> float:
    if setup.has_second_moment:
        return min(predicted or math.inf, found.limit) / CHOICE_DIVISOR
    low, high = found.ends
    if math.isinf(high) and predicted is not None:
        return min(predicted, low)  # every rate holds, as with a bounded loss
    return low or found.limit / WIDENING


def lowest_point(losses: dict[float, float]) -> float:
    """Return the rate at which a parabola through the best rate and its neighbours is lowest.

    Args:
        losses: by learning rate; infinite where a run failed.

    Returns:
        The minimum in the logarithm of the rate, between the neighbours; the best rate itself if it
        has no neighbour with a finite loss on either side.

    >>> round(lowest_point({0.01: 2.0, 0.1: 1.0, 1.0: 2.0}), 6)
    0.1
    >>> lowest_point({0.1: 2.0, 1.0: 1.0})
    1.0
    """
    rates = sorted(losses)
    place = min(range(len(rates)), key=lambda at: losses[rates[at]])
    around = rates[max(0, place - 1) : place + 2]
    if len(around) < 3 or not all(math.isfinite(losses[rate]) for rate in around):
        return rates[place]
    (left, middle, right), (low, best, high) = map(math.log, around), (losses[r] for r in around)
    before, after = (best - low) / (middle - left), (high - best) / (right - middle)
    if after <= before:  # all three are equal
        return rates[place]
    # where the slope of the parabola, linear between the two midpoints, is zero
    share = -before / (after - before)
    found = (left + middle) / 2 + share * (right - left) / 2
    return math.exp(min(max(found, left), right))


@dataclass
class _Ladder:
    """Runs of equal length at several rates, on the same batches."""

    setup: TrainingSetup
    found: Verification
    steps: int
    budget: float
    progress: ProgressCallback
    trials: dict[float, RateTrial] = field(default_factory=dict)
    runs: dict[float, ShortRun] = field(default_factory=dict)
    spent: int = 0

    def climb(self, rate: float) -> None:
        """Try a rate, a lower one, and others in the direction of lower losses."""
        self.measure(rate)
        while self._can_afford():
            after = self._next()
            if after is None:
                return
            self.measure(after)

    def _next(self) -> float | None:
        """Return the rate to try next; None once the best one has neighbours on both sides."""
        rates = sorted(self.trials)
        best, lower = self.by_loss()[0], rates[0] / CHOICE_SPACING
        if not self.has_learned():
            return lower
        higher = self._higher() if best == rates[-1] else None
        if best > rates[0]:
            return higher
        # with a second moment the first rate is far below the limit
        return higher if higher is not None and self.setup.has_second_moment else lower

    def _higher(self) -> float | None:
        """Return the rate above all that were tried; None if the limit is too near."""
        rates, high = sorted(self.trials), self.found.ends[1]
        if math.isinf(high):
            rate = rates[-1] * CHOICE_SPACING
            return rate if rate <= self.found.limit else None
        rate = min(rates[-1] * CHOICE_SPACING, math.sqrt(rates[-1] * high))
        return rate if rates[-1] < rate / math.sqrt(WIDENING) else None

    def untried_side(self, best: float) -> str:
        """Return on which side of the best rate none was tried: "higher", "lower" or neither.

        Higher ones do not count if an unstable rate is near.
        """
        if best == min(self.trials):
            return "lower"
        is_open = math.isinf(self.found.ends[1]) or self._higher() is not None
        return "higher" if best == max(self.trials) and is_open else ""

    def has_learned(self) -> bool:
        """Return whether the loss decreased by more than a few per cent at any rate."""
        return any(
            not run.shrunk and self.trials[rate].loss < CHOICE_LEARNED * run.losses[0]
            for rate, run in self.runs.items()
        )

    def by_loss(self) -> list[float]:
        """Return the rates, that with the lowest loss first, the higher of equal ones first."""
        return sorted(self.trials, key=lambda rate: (self.trials[rate].loss, -rate))

    def lowest(self) -> float:
        """Return the lowest rate that is as good as the best one, or where a parabola is lowest.

        A rate is as good if its loss is above that of the best by at most the standard error of the
        difference, step by step on the same batches: over more steps the lower one is better.
        """
        best = self.by_loss()[0]
        lower = (rate for rate in sorted(self.trials) if rate < best)
        equal = next((rate for rate in lower if self._is_equal(rate, best)), None)
        if equal is not None:
            return equal
        return lowest_point({rate: each.loss for rate, each in self.trials.items()})

    def _is_equal(self, rate: float, best: float) -> bool:
        if not math.isfinite(self.trials[rate].loss):
            return False
        return is_within_error(self._compared(rate), self._compared(best))

    def _compared(self, rate: float) -> tuple[float, ...]:
        """Return the losses of the last steps, which are compared."""
        return self.runs[rate].losses[: self.steps][-max(1, round(CHOICE_AVERAGED * self.steps)) :]

    def measure(self, rate: float) -> None:
        """Train at a rate, unless a run that verified the limit has done so."""
        run = self._known(rate)
        reused = run is not None
        if run is None:
            run = self._run(rate)
            self.spent += run.steps
        self.runs[rate] = run
        failed = run.failed and run.steps < self.steps
        loss = math.inf if failed else statistics.fmean(self._compared(rate))
        loss = loss if math.isfinite(loss) else math.inf
        self.trials[rate] = RateTrial(rate, self.steps, loss, reused)

    def _known(self, rate: float) -> ShortRun | None:
        runs = (run for run in self.found.runs if run.order == self.setup.seed)
        same = (run for run in runs if run.rate == rate)
        return next((run for run in same if run.failed or len(run.losses) >= self.steps), None)

    def _run(self, rate: float) -> ShortRun:
        total = None if math.isinf(self.budget) else int(self.budget)
        self.progress(Progress("choice", f"at {rate:.3g}", self.spent, total, "steps", "bound"))
        return self.setup.short_run(rate, self.steps)

    def _can_afford(self) -> bool:
        return self.spent + self.steps <= self.budget
