"""Plateaus: the way off, for nets whose loss stands still at first."""

from __future__ import annotations

from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.walk import Walk, Walks

__all__ = ["off_the_plateau"]

_CARRYING = UpdateRule("SGD", momentum=0.9)  # ten steps in one where the gradient stays
_CAUTION = 0.1  # of that rule's bound: what waits beyond the plateau is steeper
_LONGEST = 32  # steps
_ATTEMPTS = 3  # each at a quarter of the rate before


def off_the_plateau(walks: Walks, steepest: float) -> Walks | None:
    """Walk until the loss has begun to fall.

    A deep net with small weights gives nearly the same output for every sample. Its loss stands
    still, flat in all directions but those of the last biases, for tens of steps, until the weights
    below have grown; then it turns steep at once. Momentum shortens the way: where the gradient
    keeps its direction, a step of the heavy ball is ten steps of gradient descent.

    Args:
        walks: model, loss and batches.
        steepest: largest curvature at the start, positive, which bounds the learning rate.

    Returns:
        Walks that begin where the loss has fallen; None if it did not fall.
    """
    rate = _CAUTION * _CARRYING.largest_stable_rate(steepest)
    for attempt in range(_ATTEMPTS):
        walk = Walk(walks, _CARRYING, rate / 4**attempt)
        while walk.taken < _LONGEST and not walk.has_fallen and not walk.is_broken:
            walk.take(1)
        if walk.has_fallen:
            return walks.beginning_at(walk.taken, walk.point)
        if not walk.is_broken:
            return None
    return None
