"""Plateaus: nets whose loss stands still at first, and where they leave it."""

from __future__ import annotations

import math

from normscope.errors import NormscopeError
from normscope.learning_rate.onset import growth_limit
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.walk import Walk, Walks

__all__ = ["has_fallen", "off_the_plateau"]

_FALLEN = 0.95  # of its first value on the same batch: then a loss has left its plateau
_CARRYING = UpdateRule("SGD", momentum=0.9)  # ten steps in one where the gradient stays
_CAUTION = 0.1  # of that rule's bound: what waits beyond the plateau is steeper
_LONGEST = 32  # steps
_ATTEMPTS = 3  # each at a quarter of the rate before


def has_fallen(loss: float, first: float) -> bool:
    """Whether a loss has left its first value downwards.

    Args:
        loss: of a batch, now.
        first: of the same batch at the start.

    Returns:
        True if it is at most 95 % of it; also of a first loss that is not positive, which has no
        scale.

    >>> has_fallen(2.1, 2.3), has_fallen(2.25, 2.3)
    (True, False)
    """
    return first <= 0 or loss <= _FALLEN * first


def off_the_plateau(walks: Walks, steepest: float) -> Walks | None:
    """Walk until the loss has begun to fall.

    A deep net with small weights gives nearly the same output for every sample. Its loss stands
    still, flat in all directions but those of the last biases, for tens of steps, until the weights
    below have grown; then it turns steep at once. Momentum shortens the way: where the gradient
    keeps its direction, a step of the heavy ball is ten steps of gradient descent.

    Args:
        walks: model, loss and batches.
        steepest: largest curvature at the start, which bounds the learning rate.

    Returns:
        Walks that begin where the loss has fallen; None if it did not fall.
    """
    rate = _CAUTION * _CARRYING.largest_stable_rate(steepest)
    limit = growth_limit(walks.problem.loss)
    for attempt in range(_ATTEMPTS):
        walk = Walk(walks, _CARRYING, rate / 4**attempt)
        for _ in range(_LONGEST):
            point, start = walk.point, walks.first_loss(walk.taken)
            try:
                loss = walk.step()
            except NormscopeError:
                break
            if has_fallen(loss, start):
                return walks.beginning_at(walk.taken - 1, point)
            if not math.isfinite(loss) or loss > limit * start:
                break
        else:
            return None
    return None
