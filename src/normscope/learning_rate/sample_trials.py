"""Trial runs of the whole network on a few samples, at one learning rate after another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.errors import NormscopeError
from normscope.learning_rate.thresholds import (
    DECREASED_TRIAL,
    MEAN_SHARE,
    NOISE_SHARE,
    PLATEAU_CAUTION_TRIAL,
    STEPS,
    TRAINED_SHARE,
    TRIAL_DIVIDED_START,
    TRIAL_ENOUGH,
    TRIAL_FAR,
    TRIAL_GRADIENTS,
    TRIAL_LATE,
    TRIAL_LEAST_GRADIENTS,
    TRIAL_NEAR,
    TRIAL_RATIO,
    TRIAL_SAMPLES,
    TRIAL_START,
    TRIAL_STEPS,
)
from normscope.learning_rate.trial_run import (
    TrialRun,
    TrialStart,
    leave_plateau,
    may_be_on_plateau,
)
from normscope.learning_rate.update_rule import Preconditioner, UpdateRule
from normscope.problem.batch import (
    Batch,
    batch_count,
    has_samples,
    random_rows,
    sample_count,
    split_batch,
)
from normscope.problem.problem import Problem
from normscope.text import Rendered


@dataclass(frozen=True)
class SampleTrials(Rendered):
    """The outcome of trial runs on a few samples.

    Args:
        low: the largest stable rate; zero if none was stable.
        high: the smallest rate that was unstable or made the outputs constant; infinite if none
            did.
        samples: of the largest batch.
        gradients: taken in all.
        beyond: whether the network was first trained until it left a plateau.
        reached: share of the velocity after 100 steps that the trials reached; below 1 only if the
            lowest failure was a late one.
        is_late: whether the lowest failure was a late one, which depends on chance.
    """

    low: float
    high: float
    samples: int
    gradients: int
    beyond: bool
    reached: float = 1.0
    is_late: bool = False

    @property
    def rate(self) -> float | None:
        """The limit within 100 steps, between the two; None if no rate was unstable."""
        if math.isinf(self.high):
            return None
        middle = math.sqrt(self.low * self.high) if self.low else self.high / math.sqrt(TRIAL_NEAR)
        return middle * self.reached


def trial_batch_count(batch: Batch) -> int:
    """Return how many batches like this one give the trials a small batch for every step.

    Args:
        batch: of the problem's data.

    >>> trial_batch_count(torch.zeros(4, 2)), trial_batch_count(torch.zeros(128, 2))
    (25, 7)
    """
    count = batch_count(batch)
    return math.ceil(TRIAL_STEPS * min(_small_size(count), count) / count)


def _small_size(count: int) -> int:
    """Return the largest size of a small batch: a fourth of a whole one, but at least 32."""
    return max(TRIAL_SAMPLES, math.ceil(count / 4))


def run_sample_trials(
    problem: Problem,
    batches: Sequence[Batch],
    rule: UpdateRule,
    preconditioner: Preconditioner | None = None,
    seed: int = 0,
    mode: str = "train",
) -> SampleTrials:
    """Find the stability limit of the whole network on a few of its samples.

    Each run takes 25 steps from the current weights, each on a batch of its own, of 32 samples or a
    fourth of the user's batches if that is more; smaller batches are used as they are, since their
    noise is part of what makes training unstable. An unstable loss ends the run. The rates decrease
    from one that is usually too high, 8 over the curvature along the gradient, until one is stable;
    bisection by runs of 15 steps follows until 48 gradients are used. A network whose outputs
    hardly differ is first trained until it leaves its plateau, on which every rate is stable for a
    while. At least 18 gradients are left for the rates. Whole batches are used if the network is
    already trained, if its loss differs much between small batches, if the loss depends on the
    number of samples, as a sum over them does, or if batches cannot be cut: their rows are not
    samples, or the model does not take so few.

    Momentum moves the weights further in 100 steps than in 25. Where a run failed late, so that the
    distance covered decides and not the curvature, the limit is lowered by the share of the
    velocity that the runs reached, (1 - mu^25) / (1 - mu^100) for a constant gradient.

    Args:
        problem: model and loss; not changed.
        batches: several, from which samples are drawn; `trial_batch_count` says how many.
        rule: of the optimizer, which starts without state.
        preconditioner: divisor from the optimizer's state, if it has one; None: the rule computes
            it from the gradients.
        seed: of the samples, dropout and noise.
        mode: "train", "frozen", "eval" or "as_is".

    Returns:
        The rates that enclose the limit.
    """
    if all(map(has_samples, batches)) and max(map(sample_count, batches)) > TRIAL_SAMPLES:
        pieces = _small_batches(problem, batches, seed)
        small = TrialStart(problem, pieces, preconditioner, seed, mode=mode)
        with small.prepared():
            outputs = _outputs_of_similar(small, problem.prepare(batches[0]))
            if outputs is not None:
                return _run_trials(small, rule, *outputs)
    whole = TrialStart(problem, batches[:TRIAL_STEPS], preconditioner, seed, mode=mode)
    with whole.prepared():
        return _run_trials(whole, rule, TrialRun(whole, rule, 0.0).outputs())


def _outputs_of_similar(small: TrialStart, batch: Batch) -> tuple[Tensor | None] | None:
    """Return the outputs of the first small batch if those can stand for a whole one, else None."""
    (whole,) = small.losses_on([batch])
    try:
        losses, outputs = small.first_losses, TrialRun(small, UpdateRule("SGD"), 0.0).outputs()
    except (NormscopeError, RuntimeError, IndexError):  # a model that takes other batches only
        return None
    is_alike = _is_mean(losses, whole) and not _is_noisy(losses)
    return (outputs,) if is_alike and not _is_trained(small, outputs) else None


def _run_trials(start: TrialStart, rule: UpdateRule, outputs: Tensor | None) -> SampleTrials:
    """Run the trials inside `TrialStart.prepared`; ``outputs`` are of the first batch."""
    after = _after_plateau(start, outputs)
    rate = _first_rate(start, rule, after)
    search = _Search(start, rule, after, can_collapse=not _are_constant(outputs))
    search.run(rate, max(TRIAL_GRADIENTS - start.gradients, TRIAL_LEAST_GRADIENTS))
    samples = max(map(batch_count, start.batches))
    return SampleTrials(
        search.low,
        search.high,
        samples,
        start.gradients,
        after is not None,
        search.reached,
        search.is_late,
    )


def _small_batches(problem: Problem, batches: Sequence[Batch], seed: int) -> list[Batch]:
    """Split batches into small ones.

    Batches drawn from the data are already mixed; those of the user may be sorted by class and are
    shuffled first.
    """
    size = _small_size(max(map(sample_count, batches)))
    if not problem.is_one_batch or sample_count(batches[0]) == sample_count(problem.data):
        generator = torch.Generator().manual_seed(seed)
        batches = [random_rows(batch, sample_count(batch), generator) for batch in batches]
    return [small for batch in batches for small in split_batch(batch, size)][:TRIAL_STEPS]


def _is_mean(losses: Sequence[float], whole: float) -> bool:
    """Return whether small batches have the loss of a whole one on average, to a third."""
    return MEAN_SHARE * whole <= statistics.mean(losses) <= whole / MEAN_SHARE


def _is_noisy(losses: Sequence[float]) -> bool:
    """Return whether the losses of small batches deviate by more than 20 % of their mean."""
    return len(losses) > 1 and statistics.stdev(losses) > NOISE_SHARE * statistics.mean(losses)


def _is_trained(start: TrialStart, outputs: Tensor | None) -> bool:
    """Return whether the loss is below 75 % of that of the mean output.

    The gradient of a few samples is then unlike that of a whole batch.
    """
    if outputs is None:
        return False
    constant = outputs.mean(0, keepdim=True).expand_as(outputs)
    target = start.problem.target_of(start.placed[0])
    with torch.no_grad():
        loss = start.problem.loss_of(constant.clone(), target).item()
    return start.first_losses[0] < TRAINED_SHARE * loss


def _after_plateau(start: TrialStart, outputs: Tensor | None) -> TrialRun | None:
    """Return the run that left a plateau; None if there is none."""
    if start.preconditioner is not None:  # a network in training
        return None
    target = start.problem.target_of(start.placed[0])
    if outputs is not None and not may_be_on_plateau(start.problem, outputs, target):
        return None
    curvature = _curvature_along_gradient(start)
    if not 0 < curvature < math.inf:
        return None
    return leave_plateau(start, curvature, PLATEAU_CAUTION_TRIAL, DECREASED_TRIAL, first_only=True)


class _Search:
    """Tries rates one after another until the gradients are used up."""

    def __init__(
        self, start: TrialStart, rule: UpdateRule, after: TrialRun | None, can_collapse: bool
    ) -> None:
        self._start, self._rule, self._after = start, rule, after
        self._can_collapse = can_collapse
        self.low, self.high = 0.0, math.inf
        self._failed_after = 0  # steps of the run at the lowest rate that failed; 0: it collapsed

    def run(self, rate: float, steps: int) -> None:
        """Enclose the limit to a factor of 1.5.

        Args:
            rate: to start with.
            steps: of all runs together, at most.
        """
        while 0 < rate < math.inf and steps > 0 and not self.high <= TRIAL_RATIO * self.low:
            run = TrialRun(self._start, self._rule, rate, after=self._after)
            run.take(min(TRIAL_ENOUGH if self.low else TRIAL_STEPS, steps))
            steps -= run.taken
            if not run.taken:  # unstable before any step, at any rate
                break
            if run.is_unstable or self._has_collapsed(run):
                self.high, self._failed_after = rate, run.taken if run.is_unstable else 0
            elif run.taken >= TRIAL_ENOUGH:
                self.low = rate
            else:  # out of steps: undecided
                break
            rate = self._next_rate(is_far=run.is_unstable and run.taken < TRIAL_LATE)

    @property
    def is_late(self) -> bool:
        """Whether the run at the lowest rate that failed did so late."""
        return self._failed_after >= TRIAL_LATE

    @property
    def reached(self) -> float:
        """Share of the velocity after 100 steps of a constant gradient that the runs reached."""
        momentum = 0.0 if self._rule.corrected else self._rule.momentum
        steps = max(self._failed_after, TRIAL_STEPS if self.low else 0)
        return (1 - momentum**steps) / (1 - momentum**STEPS) if self.is_late else 1.0

    def _has_collapsed(self, run: TrialRun) -> bool:
        return self._can_collapse and run.taken >= TRIAL_ENOUGH and _are_constant(run.outputs())

    def _next_rate(self, is_far: bool) -> float:
        if not self.low:
            return self.high / (TRIAL_FAR if is_far else TRIAL_NEAR)
        return self.low * TRIAL_FAR if math.isinf(self.high) else math.sqrt(self.low * self.high)


def _first_rate(start: TrialStart, rule: UpdateRule, after: TrialRun | None) -> float:
    """Return a rate that is usually too high; zero if the gradient is zero or not finite.

    It is 8 over the curvature along the gradient; with a divisor 4 times the typical weight.
    """
    if rule.second_moment is not None:
        return TRIAL_DIVIDED_START * _length(start.initial[0]) / math.sqrt(start.layout.size)
    curvature = _curvature_along_gradient(start, after)
    return TRIAL_START / curvature if 0 < curvature < math.inf else 0.0


def _curvature_along_gradient(start: TrialStart, after: TrialRun | None = None) -> float:
    """Return the change of the first batch's gradient along itself, by a short step."""
    leaves, gradients = start.initial[0::2] if after is None else (after.leaves, after.gradients)
    norm = _length(gradients)
    if not 0 < norm < math.inf:
        return 0.0
    rounding = max(torch.finfo(leaf.dtype).eps for leaf in leaves)
    length = 3.0 * math.sqrt(rounding) * (_length(leaves) or 1.0)
    run = TrialRun(start, UpdateRule("SGD"), length / norm, after, first_only=True).take(1)
    pairs = zip(run.gradients, gradients, strict=True)
    return (
        _length([new - old for new, old in pairs if new is not None and old is not None]) / length
    )


def _length(tensors: Sequence[Tensor | None]) -> float:
    """Return the norm of all tensors as one vector."""
    return math.hypot(*(float(each.detach().norm()) for each in tensors if each is not None))


def _are_constant(outputs: Tensor | None) -> bool:
    """Return whether all samples have the same output; False if there is none."""
    return outputs is not None and len(outputs) > 1 and bool((outputs == outputs[:1]).all())
