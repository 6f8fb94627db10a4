"""One hidden unit of a tanh network as a halfspace problem, its neighbours held fixed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from normscope.decoupled.halfspace import Direction, SampleObjective
from normscope.decoupled.margin_losses import MarginLoss
from normscope.decoupled.signed_design import SignedDesign

__all__ = ["HiddenUnits", "UnitObjective"]

Array = NDArray[np.float64]

_TANH_CURVATURE = 4 / (3 * math.sqrt(3))  # the largest of |tanh''|


@dataclass(frozen=True, eq=False)
class HiddenUnits:
    """The state of a network with one hidden tanh layer.

    Since tanh is odd, -y F(x) is the same sum of theta tanh over z = -y x.

    Args:
        design: the samples.
        loss: of -y F(x).
        weights: incoming weights (units, size), changed in place while the units take turns.
        outputs: outgoing weights theta (units,), too.
    """

    design: SignedDesign
    loss: MarginLoss
    weights: Array
    outputs: Array

    @cached_property
    def quotient(self) -> float:
        """u'S^{-1}u, or one where u = 0."""
        return float(self.design.mean @ self.design.solve(self.design.mean)) or 1.0

    def margins(self) -> Array:
        """Margins z'w of every unit (units, samples)."""
        return np.stack([self.design.margins(w) for w in self.weights])

    def activations(self) -> Array:
        """tanh(z'w) of every unit (samples, units)."""
        return np.tanh(self.margins()).T

    def value(self) -> float:
        """The objective."""
        losses = self.loss.value(self.activations() @ self.outputs)
        return float(self.design.weights @ losses)

    def unit(self, index: int) -> UnitObjective:
        """The objective as a function of one unit."""
        return UnitObjective(self, index)

    def alignment(self) -> Array:
        """Cosine, in magnitude, of every unit with the line of S^{-1}u, in the product of S."""
        line = self.design.solve(self.design.mean)
        lengths = np.sqrt([w @ self.design.second_moment(w) for w in self.weights])
        along = np.abs(self.weights @ self.design.second_moment(line))
        whole = lengths * math.sqrt(self.quotient)
        return np.asarray(along / np.where(whole > 0, whole, 1))


class UnitObjective(SampleObjective):
    r"""E l(theta tanh(z'w) + rest) over one unit's weights w.

    Where the neighbours lie on the line of S^{-1}u and z is Gaussian, Stein's identity gives the
    gradient the form of a halfspace's, with the neighbours' terms beside E phi':

    .. math:: \sum_{j \ne i} E[\partial_j \phi'] \left(\frac{1}{u^T S^{-1} u} - 1\right) u^T w_j

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization.

    Args:
        units: the network.
        index: which unit.
    """

    def __init__(self, units: HiddenUnits, index: int) -> None:
        self.output = float(units.outputs[index])
        margins, outputs = units.margins(), units.outputs
        activations = np.tanh(margins)
        self.rest = outputs @ activations - self.output * activations[index]
        shifts = (units.weights @ units.design.mean) * (1 / units.quotient - 1)
        shifts[index] = 0.0
        self.neighbours = (outputs * shifts) @ (1 - activations**2)
        self.outer = units.loss
        self.constant = self._constant(units, index)
        super().__init__(units.design, self._unit_loss())

    def other_terms(self, direction: Direction, length: float) -> float:
        """The neighbours' terms beside E phi'."""
        activation = np.tanh(length * direction.margins)
        outer = self.outer.curvature(self.output * activation + self.rest)
        return float(self.weights @ (outer * self._steepness(activation) * self.neighbours))

    def _steepness(self, activation: Array) -> Array:
        return self.output * (1 - activation**2)

    def _unit_loss(self) -> MarginLoss:
        """The loss of the whole network as a function of this unit's margins."""
        outer, output, rest = self.outer, self.output, self.rest

        def value(margins: Array) -> Array:
            return outer.value(output * np.tanh(margins) + rest)

        def slope(margins: Array) -> Array:
            activation = np.tanh(margins)
            return outer.slope(output * activation + rest) * self._steepness(activation)

        def curvature(margins: Array) -> Array:
            activation = np.tanh(margins)
            whole, steepness = output * activation + rest, self._steepness(activation)
            bent = outer.slope(whole) * -2 * activation * steepness
            return np.asarray(outer.curvature(whole) * steepness**2 + bent)

        longest = 20.0  # tanh is flat beyond: longer weights change nothing
        return MarginLoss(value, slope, curvature, *self._bounds(), longest)

    def _bounds(self) -> tuple[float | None, float | None]:
        """Bounds of the unit's slope and curvature, where the outer loss has them."""
        first, second = self.outer.slope_bound, self.outer.curvature_bound
        if first is None or second is None:
            return None, None
        own = abs(self.output)
        return first * own, second * own**2 + first * own * _TANH_CURVATURE

    def _constant(self, units: HiddenUnits, index: int) -> tuple[float, float]:
        """Bounds of the factor of u in the gradient: a fixed part, and one times the length."""
        first, second = self._bounds()
        if first is None or second is None or self.outer.curvature_bound is None:
            return math.nan, math.nan
        bound = self.outer.curvature_bound * abs(self.output) * np.abs(units.outputs)
        shifts = np.abs(units.weights @ units.design.mean) * abs(1 / units.quotient - 1)
        others = np.delete(bound * shifts, index).sum()
        return first + float(others), second * math.sqrt(min(units.quotient, 1.0))
