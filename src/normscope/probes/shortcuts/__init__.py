"""Shortcuts for wide linear layers on the gradient's ray, behind one entry: `RayShortcuts`.

They compare the gradients of these layers without computing them. Without the shortcuts, a ray
gives the same values up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from torch import Tensor, nn

from normscope.curvature.problem import Problem
from normscope.probes.gradients import GradientComparison
from normscope.probes.shortcuts.factored import FactoredGradients
from normscope.probes.shortcuts.input_layers import InputLayers, weights_are_private
from normscope.probes.shortcuts.linear import Shortcut

__all__ = ["RayShortcuts"]

ENABLED = True  # the benchmark of the probes measures both
_MIN_POINTS = 3  # of a ray, from which preparing for all but the first pays off


class RayShortcuts:
    """The shortcuts of one measured step.

    Args:
        buffer: returns a reused matrix of so many rows and columns, like a tensor.
    """

    def __init__(self, buffer: Callable[[int, int, Tensor], Tensor]) -> None:
        self._factored = FactoredGradients(buffer)
        self._input_layers = InputLayers({}, {}, {})
        self._active: Sequence[Shortcut] = ()
        self._gradient: Mapping[str, Tensor] = {}
        self._is_first_point = False
        self._records = False

    def record_start(self, model: nn.Module, trained: Collection[str]) -> None:
        """Record the pass at the parameters; inside its context, before the pass."""
        if ENABLED:
            self._factored.record(model, trained)

    def end_start(self, gradient: Mapping[str, Tensor]) -> None:
        """Finish the recording after the pass at the parameters."""
        self._factored.settle(gradient)

    def begin_ray(
        self,
        problem: Problem,
        start: Mapping[str, Tensor],
        gradient: Mapping[str, Tensor],
        rates: Mapping[str, float],
        points: int,
    ) -> None:
        """Prepare for the points of a ray.

        Args:
            problem: model, loss and batch.
            start: the model's parameters, by name.
            gradient: at the start.
            rates: the learning rate of each parameter.
            points: number of points.
        """
        self._gradient = gradient
        self._input_layers = InputLayers(start, gradient, rates)
        self._is_first_point = True
        is_worth_it = ENABLED and points >= _MIN_POINTS
        self._records = is_worth_it and weights_are_private(problem.model, problem.loss)

    def begin_point(self, distance: float) -> None:
        """Use the shortcuts known so far for the next point."""
        self._input_layers.set_distance(distance)
        known = (self._input_layers, self._factored)
        self._active = [shortcut for shortcut in known if shortcut.names]

    @property
    def unmoved(self) -> Collection[str]:
        """The parameters that need not be moved to a point."""
        return self._input_layers.names

    @property
    def names(self) -> set[str]:
        """The parameters whose gradients are not needed."""
        return {name for shortcut in self._active for name in shortcut.names}

    def begin_pass(self, model: nn.Module, comparison: GradientComparison) -> None:
        """Prepare the pass at a point, inside its context."""
        if self._is_first_point and self._records:  # it shows which layers the others can skip
            self._input_layers.record(model)
            self._factored.record_first_point(model, self._gradient)
        for shortcut in self._active:
            shortcut.begin_pass(model, comparison)

    def inspect(self, loss: Tensor, weights: Mapping[str, Tensor]) -> None:
        """Inspect the graph of a pass before its backward pass."""
        for shortcut in self._active:
            shortcut.inspect(loss, weights)

    def end_point(self) -> bool:
        """Return whether the last pass met all assumptions; if not, use no known shortcut again."""
        is_valid = all(shortcut.is_valid for shortcut in self._active)
        if not is_valid:
            for shortcut in self._active:
                shortcut.disable()
        if self._is_first_point:
            self._is_first_point = False
            self._input_layers.settle()
            self._factored.multiply_out(excluded=self._input_layers.names)
        return is_valid
