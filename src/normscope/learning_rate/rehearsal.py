"""The whole net rehearsed in small: a few steps on a few samples, at one rate after another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.learning_rate.plateau import may_stand_still, off_the_plateau
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.walk import Walk, Walks
from normscope.problem.batch import Batch, pieces, rows, sample_count, tensors_of
from normscope.problem.problem import Problem

__all__ = ["Rehearsal", "rehearsed"]

# Chosen on nets without normalization whose onsets are known: docs/learning_rate.md has what each
# of these costs in accuracy.
_SAMPLES = 32  # in a batch at most
_BATCHES = 8  # in turn
_STEPS = 15  # after which a rate counts as stable
_GRADIENTS = 36  # in all; the answer is as good as what was tried by then
_LEAST = 18  # of them at one rate after another, whatever the way off a plateau has taken
_FIRST = 8.0  # over the curvature along the gradient: the rate to begin with, most often too high
_FIRST_DIVIDED = 4.0  # times the weights: the same where the optimizer divides the gradient
_SOON = 7  # steps within which a rate that is far too high breaks
_FAR, _NEAR = 4.0, 2.0  # from one rate to the next while the onset is not enclosed
_CLOSE = 1.5  # between a stable and an unstable rate, which is close enough
_CAUTION = 0.2  # of the bound, on the walk off a plateau
_FALLEN = 0.92  # where it ends: a few samples are fitted sooner than many
_NOISY = 0.2  # spread of the losses of small batches, over their mean
_LEARNED = 0.75  # of the loss of a constant output
_SHORT = 3.0  # times the root of the rounding error: of the weights, along the gradient


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal found.

    Args:
        low: the largest rate that was stable; zero if none was.
        high: the smallest that was not, or at which the net died; infinite if none was.
        samples: of the largest batch.
        gradients: taken in all.
        beyond: whether the net had first been led off a plateau.
    """

    low: float
    high: float
    samples: int
    gradients: int
    beyond: bool

    @property
    def rate(self) -> float | None:
        """The onset, between the two; None if no rate was unstable."""
        if math.isinf(self.high):
            return None
        return math.sqrt(self.low * self.high) if self.low else self.high / math.sqrt(_NEAR)

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        return pairs_html(vars(self), "The net rehearsed in small")


def rehearsed(
    problem: Problem,
    batches: Sequence[Batch],
    rule: UpdateRule,
    preconditioner: Preconditioner | None = None,
    seed: int = 0,
) -> Rehearsal:
    """Find the onset of the whole net on a few of its samples.

    The net takes at most 15 steps at a rate, on batches of 32 samples in turn, from the present
    weights on; a loss that breaks, by the definition of the whole project, ends them at once. The
    rates go down from one that is most often too high, 8 over the curvature along the gradient,
    until one is stable, and then halve what is between, until 36 gradients are spent. A net whose
    outputs are all alike is first led off its plateau: on it every rate is stable for a while.
    However long that takes, 18 gradients are left for the rates. For a net that has learned
    already, or whose loss differs much between batches of 32, whole batches are taken.

    Args:
        problem: model and loss; nothing of it is changed.
        batches: a few, from which samples are drawn.
        rule: of the optimizer, which begins without a memory of gradients.
        preconditioner: what the state of an optimizer divides by, if it has one; None: what its
            rule makes of the gradients.
        seed: of the samples, dropout and noise.

    Returns:
        The rates that enclose the onset.
    """
    small = Walks(problem, _small(problem, batches, seed), preconditioner, seed)
    with small.held():
        outputs = Walk(small, rule, 0.0).outputs()
        if not (_differ(small.first_losses) or _tells_samples_apart(small, outputs)):
            return _rehearsed(small, rule, outputs)
    whole = Walks(problem, batches, preconditioner, seed)
    with whole.held():
        return _rehearsed(whole, rule, Walk(whole, rule, 0.0).outputs())


def _rehearsed(walks: Walks, rule: UpdateRule, outputs: Tensor | None) -> Rehearsal:
    """The same on given batches, of a model that is set up for it; outputs are of the first."""
    off = _led_off(walks, outputs)
    rate = _first_rate(walks, rule, off)
    search = _Search(walks, rule, off, can_die=not _are_equal(outputs))
    search.run(rate, max(_GRADIENTS - walks.gradients, _LEAST))
    samples = max(map(sample_count, walks.batches))
    return Rehearsal(search.low, search.high, samples, walks.gradients, beyond=off is not None)


def _small(problem: Problem, batches: Sequence[Batch], seed: int) -> list[Batch]:
    """Small batches of the given ones.

    Batches that were drawn from the data are cut as they are; the user's own, which may be in the
    order of classes, are mixed first.
    """
    if problem.is_one_batch and sample_count(batches[0]) < sample_count(problem.data):
        return [piece for batch in batches for piece in pieces(batch, _SAMPLES)][:_BATCHES]
    generator, found = torch.Generator().manual_seed(seed), list[Batch]()
    for batch in batches:
        order = torch.randperm(sample_count(batch), generator=generator)
        device = next(tensors_of(batch)).device
        found += [rows(batch, part.to(device)) for part in pieces(order, _SAMPLES)]
    return found[:_BATCHES]


def _differ(losses: Sequence[float]) -> bool:
    """Whether so few samples are too few: the losses of small batches are far apart."""
    return len(losses) > 1 and statistics.stdev(losses) > _NOISY * statistics.mean(losses)


def _tells_samples_apart(walks: Walks, outputs: Tensor | None) -> bool:
    """Whether the net has learned: its loss is well below that of its mean output.

    The gradients of so few samples then have little to do with that of a whole batch.
    """
    if outputs is None:
        return False
    constant = outputs.mean(0, keepdim=True).expand_as(outputs)
    with torch.no_grad():
        loss = walks.problem.loss_of(constant.clone(), walks.placed[0][1]).item()
    return walks.first_losses[0] < _LEARNED * loss


def _led_off(walks: Walks, outputs: Tensor | None) -> Walk | None:
    """Where a net that may stand on a plateau has left it; None if it stands on none."""
    if walks.preconditioner is not None:  # a net that is trained already
        return None
    if outputs is not None and not may_stand_still(walks.problem, outputs, walks.placed[0][1]):
        return None
    curvature = _curvature_along_gradient(walks)
    if not 0 < curvature < math.inf:
        return None
    return off_the_plateau(walks, curvature, _CAUTION, _FALLEN, first_only=True)


class _Search:
    """Rates tried one after another, until their gradients are spent."""

    def __init__(self, walks: Walks, rule: UpdateRule, off: Walk | None, can_die: bool) -> None:
        self._walks, self._rule, self._off, self._can_die = walks, rule, off, can_die
        self.low, self.high = 0.0, math.inf

    def run(self, rate: float, steps: int) -> None:
        """Enclose the onset.

        Args:
            rate: to begin with.
            steps: of all tries together, at most.
        """
        while 0 < rate < math.inf and steps > 0 and not self.high <= _CLOSE * self.low:
            walk = Walk(self._walks, self._rule, rate, after=self._off).take(min(_STEPS, steps))
            steps -= walk.taken
            if not walk.taken:  # broken before any step: no rate is to blame
                break
            if walk.is_broken or self._has_died(walk):
                self.high = rate
            elif walk.taken == _STEPS:
                self.low = rate
            else:  # cut off: neither is known
                break
            rate = self._next(soon=walk.is_broken and walk.taken <= _SOON)

    def _has_died(self, walk: Walk) -> bool:
        """Whether all outputs have become the same: nothing is learned behind units at zero."""
        return self._can_die and walk.taken == _STEPS and _are_equal(walk.outputs())

    def _next(self, soon: bool) -> float:
        if not self.low:
            return self.high / (_FAR if soon else _NEAR)
        return self.low * _FAR if math.isinf(self.high) else math.sqrt(self.low * self.high)


def _first_rate(walks: Walks, rule: UpdateRule, off: Walk | None) -> float:
    """A rate to begin with, most often too high; zero where the gradient tells nothing."""
    if rule.second_moment is not None:
        return _FIRST_DIVIDED * _length(walks.start[0]) / math.sqrt(walks.layout.size)
    curvature = _curvature_along_gradient(walks, off)
    return _FIRST / curvature if 0 < curvature < math.inf else 0.0


def _curvature_along_gradient(walks: Walks, off: Walk | None = None) -> float:
    """How much the gradient of the first batch changes along itself, by a short step."""
    leaves, gradients = walks.start[0::2] if off is None else (off.leaves, off.gradients)
    steepness = _length(gradients)
    if not 0 < steepness < math.inf:
        return 0.0
    rounding = max(torch.finfo(leaf.dtype).eps for leaf in leaves)
    length = _SHORT * math.sqrt(rounding) * (_length(leaves) or 1.0)
    walk = Walk(walks, UpdateRule("SGD"), length / steepness, off, first_only=True).take(1)
    pairs = zip(walk.gradients, gradients, strict=True)
    return (
        _length([new - old for new, old in pairs if new is not None and old is not None]) / length
    )


def _length(tensors: Sequence[Tensor | None]) -> float:
    """Of all of them as one vector."""
    return math.hypot(*(float(each.detach().norm()) for each in tensors if each is not None))


def _are_equal(outputs: Tensor | None) -> bool:
    """Whether all samples have the same output; False if it cannot be seen."""
    return outputs is not None and len(outputs) > 1 and bool((outputs == outputs[:1]).all())
