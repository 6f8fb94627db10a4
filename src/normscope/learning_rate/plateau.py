"""Plateaus: the way off, for nets whose loss stands still at first."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.walk import FALLEN, Walk, Walks
from normscope.problem.loss import is_cross_entropy, known_loss
from normscope.problem.problem import Problem

__all__ = ["may_stand_still", "off_the_plateau"]

_CARRYING = UpdateRule("SGD", momentum=0.9)  # ten steps in one where the gradient stays
_LONGEST = 32  # steps
_ATTEMPTS = 3  # each at a quarter of the rate before
# Of what the outputs are to become: nets on a plateau gave at most 0.005. Logits that small make a
# net far steeper within its first steps, too; squares seldom do.
_ALIKE, _ALIKE_LOGITS = 0.03, 0.15


def off_the_plateau(
    walks: Walks,
    steepest: float,
    caution: float = 0.1,
    fallen: float = FALLEN,
    first_only: bool = False,
) -> Walk | None:
    """Walk until the loss has begun to fall.

    A deep net with small weights gives nearly the same output for every sample. Its loss stands
    still, flat in all directions but those of the last biases, for tens of steps, until the weights
    below have grown; then it turns steep at once. Momentum shortens the way: where the gradient
    keeps its direction, a step of the heavy ball is ten steps of gradient descent.

    Args:
        walks: model, loss and batches.
        steepest: largest curvature at the start, positive, which bounds the learning rate.
        caution: the part of that bound which is taken: what waits beyond is steeper.
        fallen: the share of its first value at which a loss has begun to fall.
        first_only: whether to walk on the first batch alone.

    Returns:
        The walk that ended where the loss has fallen; None if it did not fall.
    """
    rate = caution * _CARRYING.largest_stable_rate(steepest)
    for attempt in range(_ATTEMPTS):
        walk = Walk(walks, _CARRYING, rate / 4**attempt, first_only=first_only)
        walk.take(_LONGEST, until=fallen)
        if walk.has_fallen(fallen):
            return walk
        if not walk.is_broken:
            return None
    return None


def may_stand_still(problem: Problem, outputs: Tensor, targets: Tensor) -> bool:
    """Whether a net may begin on a plateau, or flatter than it soon is: its outputs are alike.

    Args:
        problem: for its loss.
        outputs: of some samples, but for a constant.
        targets: of the same samples.

    Returns:
        False where the outputs differ between samples by more than a part of what the loss asks
        for: by 0.15 for the logits of a cross-entropy, by 3 % of the spread of the targets for a
        squared error. True for other losses, of which that is not known, and for targets that torch
        would broadcast.
    """
    if is_cross_entropy(problem.loss):
        alike = _ALIKE_LOGITS
        outputs = outputs.movedim(1, -1) if outputs.dim() > 2 else outputs  # as torch has classes
    elif known_loss(problem.loss, outputs, targets) is not None:  # squares
        alike = _ALIKE * _spread(_vectors(targets, outputs))
    else:
        return True
    return not _spread(outputs) > alike


def _vectors(targets: Tensor, outputs: Tensor) -> Tensor:
    """Targets in the shape of the outputs; a label as its one-hot vector."""
    if targets.shape == outputs.shape:
        return targets
    return functional.one_hot(targets.long(), outputs.shape[-1])


def _spread(values: Tensor) -> float:
    """Root mean square over samples and positions of the distance to their mean, by entry."""
    vectors = values.to(torch.float64)
    vectors = vectors.unsqueeze(1) if vectors.dim() == 1 else vectors.flatten(0, -2)
    return math.sqrt(torch.var(vectors, dim=0, correction=0).mean().item())
