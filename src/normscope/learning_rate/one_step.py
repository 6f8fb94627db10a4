"""The last layer on features that one step of all the other parameters has moved."""

from __future__ import annotations

import math

from torch import Tensor

from normscope.curvature.batch import Batch
from normscope.curvature.evaluation import Evaluator
from normscope.learning_rate.last_layer import LastLayer, last_layer
from normscope.learning_rate.last_layer_onset import last_layer_onset
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.walk import gradient_on

__all__ = ["OneStep"]

_HALVINGS = 3  # of the range in which the largest rate that holds is looked for
_SHORTENED = 4  # times at most, each to a quarter


class OneStep:
    """One step of all parameters but the last layer's, at any learning rate.

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
        own = f"{layer.name}." if layer.name else ""
        steps = zip(evaluator.layout.names, evaluator.layout.split(direction), strict=True)
        self._steps = {name: step for name, step in steps if not name.startswith(own)}

    def onset_after(self, rate: float, near: float) -> float | None:
        """The onset of the last layer, trained alone, on features after the step.

        Args:
            rate: of the step; one that leaves the range of numbers is shortened.
            near: a learning rate near the onset.

        Returns:
            The onset; None if none was found, or every step leaves the range of numbers.
        """
        layer = self._moved(rate)
        if layer is None:
            return None
        return last_layer_onset(layer, self._evaluator.problem, self._rule, near=near)

    def largest_that_holds(self, low: float, high: float, near: float) -> float:
        """The largest rate at which the last layer is still stable after a step at that rate.

        Args:
            low: the smallest rate that is an answer.
            high: the largest.
            near: a learning rate near the onset of the last layer.

        Returns:
            ``high`` if it holds; else a rate between, to an eighth of the range in logarithms.
        """
        if self._holds(high, near):
            return high
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._holds(middle, near) else (low, middle)
        return low

    def _holds(self, rate: float, near: float) -> bool:
        onset = self.onset_after(rate, near)
        return onset is not None and onset >= rate

    def _moved(self, rate: float) -> LastLayer | None:
        point = self._evaluator.point
        for _ in range(_SHORTENED):
            moved = {name: point[name] - rate * step for name, step in self._steps.items()}
            found = last_layer(self._evaluator, moved)
            if found is not None and all(map(_is_finite, found.features)):
                return found
            rate /= 4
        return None


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
