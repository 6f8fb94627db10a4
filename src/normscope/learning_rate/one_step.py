"""The last layer on features that one step of all the other parameters has moved."""

from __future__ import annotations

from torch import Tensor

from normscope.learning_rate.last_layer import LastLayer, belongs_to, last_layer
from normscope.learning_rate.last_layer_onset import last_layer_onset
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.walk import gradient_on
from normscope.problem.batch import Batch
from normscope.problem.evaluate import Evaluator

__all__ = ["OneStep"]

_SHORTENED = 4  # lengths at most, each a quarter of the one before


class OneStep:
    """One step of all parameters but the last layer's, at any learning rate; without weight decay.

    Args:
        evaluator: model, loss and a few batches; nothing of it is changed.
        batch: whose gradient is descended.
        layer: the last layer, which stays as it is.
        rule: of the optimizer.
        preconditioner: of the optimizer; None for SGD.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        batch: Batch,
        layer: LastLayer,
        rule: UpdateRule,
        preconditioner: Preconditioner | None = None,
    ) -> None:
        self._evaluator, self._rule = evaluator, rule
        _, gradient = gradient_on(evaluator, batch)
        direction = gradient if preconditioner is None else gradient / preconditioner.scale
        if rule.nesterov:  # whose first step goes ahead by its own momentum
            direction = (1 + rule.momentum) * direction
        steps = zip(evaluator.layout.names, evaluator.layout.split(direction), strict=True)
        self._steps = {name: step for name, step in steps if not belongs_to(layer, name)}

    def onset_after(self, rate: float, near: float) -> float | None:
        """The onset of the last layer, trained alone, on features after the step.

        A step that leaves the range of numbers is tried again, shorter.

        Args:
            rate: of the step.
            near: a learning rate near the onset.

        Returns:
            The onset; zero if no step stays in the range of numbers, None if no onset was found.
        """
        for _ in range(_SHORTENED):
            layer = self._moved(rate)
            if layer is not None:
                return last_layer_onset(layer, self._evaluator.problem, self._rule, near=near)
            rate /= 4
        return 0.0

    def _moved(self, rate: float) -> LastLayer | None:
        """The layer on the features after a step; None if they are out of the range of numbers."""
        point = self._evaluator.point
        moved = {
            name: (point[name] - rate * step).to(point[name].dtype)  # a layout has one dtype
            for name, step in self._steps.items()
        }
        found = last_layer(self._evaluator, moved)
        return found if found is not None and all(map(_is_finite, found.features)) else None


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
