"""A hidden tanh layer, trained unit by unit: each unit is a halfspace problem for GDNP."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from normscope.decoupled.design import SignedDesign
from normscope.decoupled.gdnp import Iterate, Options, dual_residual, gdnp, minimum
from normscope.decoupled.halfspace import Direction, MarginLoss, SampleObjective
from normscope.text import Rendered, Table

Array = NDArray[np.float64]

_TANH_CURVATURE = 4 / (3 * math.sqrt(3))  # largest |tanh''|
_LONGEST_OUTPUT = 20.0  # root mean square of F beyond which the logistic loss is flat


@dataclass(frozen=True, eq=False)
class HiddenUnits:
    """The state of a network with one hidden tanh layer.

    Since tanh is odd, -y F(x) is the same sum of theta tanh over z = -y x.

    Args:
        design: the samples.
        loss: of -y F(x).
        weights: incoming weights (units, size), changed in place by training.
        outputs: outgoing weights theta (units,), changed in place too.
    """

    design: SignedDesign
    loss: MarginLoss
    weights: Array
    outputs: Array

    @cached_property
    def quotient(self) -> float:
        """u'S^{-1}u, or one if u = 0."""
        return float(self.design.mean @ self.design.solve(self.design.mean)) or 1.0

    def margins(self) -> Array:
        """Return the margins z'w of every unit (units, samples)."""
        return np.stack([self.design.margins(w) for w in self.weights])

    def activations(self) -> Array:
        """Return tanh(z'w) of every unit (samples, units)."""
        return np.tanh(self.margins()).T

    def value(self) -> float:
        """Return the objective."""
        losses = self.loss.value(self.activations() @ self.outputs)
        return float(self.design.weights @ losses)

    def unit(self, index: int) -> UnitObjective:
        """Return the objective as a function of one unit."""
        return UnitObjective(self, index)

    def alignment(self) -> Array:
        """Return |cosine| of every unit with the line of S^{-1}u, in the product of S."""
        line = self.design.solve(self.design.mean)
        lengths = np.sqrt([w @ self.design.second_moment(w) for w in self.weights])
        along = np.abs(self.weights @ self.design.second_moment(line))
        whole = lengths * math.sqrt(self.quotient)
        return np.asarray(along / np.where(whole > 0, whole, 1))


class UnitObjective(SampleObjective):
    r"""E l(theta tanh(z'w) + rest) over one unit's weights w.

    If the other units lie on the line of S^{-1}u and z is Gaussian, the gradient has the form of a
    halfspace's by Stein's identity, with terms of the other units beside E phi':

    .. math:: \sum_{j \ne i} E[\partial_j \phi'] \left(\frac{1}{u^T S^{-1} u} - 1\right) u^T w_j

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization.

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
        """Return the terms of the other units beside E phi'."""
        activation = np.tanh(length * direction.margins)
        outer = self.outer.curvature(self.output * activation + self.rest)
        return float(self.weights @ (outer * self._steepness(activation) * self.neighbours))

    def _steepness(self, activation: Array) -> Array:
        return self.output * (1 - activation**2)

    def _unit_loss(self) -> MarginLoss:
        """Return the loss of the network as a function of this unit's margins."""
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

        longest = 20.0  # tanh is flat beyond
        return MarginLoss(value, slope, curvature, *self._bounds(), longest)

    def _bounds(self) -> tuple[float | None, float | None]:
        """Return bounds of the unit's slope and curvature, if the outer loss has them."""
        first, second = self.outer.slope_bound, self.outer.curvature_bound
        if first is None or second is None:
            return None, None
        own = abs(self.output)
        return first * own, second * own**2 + first * own * _TANH_CURVATURE

    def _constant(self, units: HiddenUnits, index: int) -> tuple[float, float]:
        """Return bounds of the factor of u in the gradient: a constant, and one per length."""
        first, second = self._bounds()
        if first is None or second is None or self.outer.curvature_bound is None:
            return math.nan, math.nan
        bound = self.outer.curvature_bound * abs(self.output) * np.abs(units.outputs)
        shifts = np.abs(units.weights @ units.design.mean) * abs(1 / units.quotient - 1)
        others = np.delete(bound * shifts, index).sum()
        return first + float(others), second * math.sqrt(min(units.quotient, 1.0))


@dataclass(frozen=True, eq=False)
class UnitPath:
    r"""A run of GDNP on one unit: its gradient, and the article's bound with a valid constant.

    .. math::
        |\nabla f|_{S^{-1}}^2 \le (1 - \mu/L)^{2t}\, C\, (\rho(w_0) - \rho^*)
        + \left(2^{-T_s} \zeta |b - a| / \mu\right)^2

    It is proved for Gaussian z = -yx with the other units on the line of S^{-1}u. On other data the
    gradient may exceed it.

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization. C bounds
    the square of the factor of u in the gradient along the path.

    Args:
        unit: its index.
        gradient: squared norm of the gradient in S^{-1} at every step; NaN if S is not formed.
        bound: the right side at every step, assuming Gaussian z; NaN if S is not formed.
        residual: norm of the last gradient over sqrt(L).
        steps: number of direction steps.
        decrease: of the objective, which one more step along S^{-1} times the gradient is sure to
            reach: |g|^2 / (2 c) in S^{-1}, with the bound c of the unit's curvature (1 if unknown).
            If S is not formed, the largest of a step along one column.
    """

    unit: int
    gradient: Array
    bound: Array
    residual: float
    steps: int
    decrease: float = 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Trained(Rendered):
    """A network after training.

    Args:
        units: the network.
        first: the run of each unit in the first sweep.
        last: the run of each unit in the last sweep.
        sweeps: number of sweeps.
        converged: the last sweep lowered the objective by no more than the tolerance, and no unit
            has a step left that lowers it by more.
    """

    units: HiddenUnits
    first: list[UnitPath]
    last: list[UnitPath]
    sweeps: int
    converged: bool

    def to_dict(self) -> dict[str, int | bool]:
        """Return the number of units and sweeps, and whether training converged."""
        return {"units": len(self.last), "sweeps": self.sweeps, "converged": self.converged}

    def _table(self) -> Table:
        return Table(self.to_dict(), "Hidden units, trained one at a time")


def train_units(
    units: HiddenUnits,
    starts: Array | None,
    options: Options,
    *,
    unit_steps: int,
    max_sweeps: int,
    tol: float,
    refit: bool,
) -> Trained:
    """Sweep over the units until the objective stops decreasing; changes them in place.

    Args:
        units: the network.
        starts: first directions, instead of the units' weights in the first sweep.
        options: of GDNP; the bisection ends at a thousandth of ``tol``.
        unit_steps: largest number of direction steps of a unit in one sweep.
        max_sweeps: largest number of sweeps over all units.
        tol: a sweep that lowers the objective by no more than this is the last, unless a unit has a
            step left that lowers it by more.
        refit: optimize the outgoing weights after each sweep.

    Returns:
        The network and the runs of its units.
    """
    tolerance = tol / 100  # of the gradients, whose squares change the objective
    options = replace(options, length_tolerance=tolerance / 10)
    first: list[UnitPath] = []
    before = np.inf
    converged, count = False, 0
    while not converged and count < max_sweeps:
        paths = sweep(units, options, unit_steps, tolerance, starts)
        first, starts = first or paths, None
        if refit:
            refit_outputs(units, unit_steps, tolerance)
        value = units.value()
        converged = before - value <= tol and all(path.decrease <= tol for path in paths)
        before, count = value, count + 1
    return Trained(units, first, paths, count, converged)


def sweep(
    units: HiddenUnits, options: Options, steps: int, tol: float, starts: Array | None = None
) -> list[UnitPath]:
    """Train every unit once by GDNP; the units' weights are changed in place.

    Args:
        units: the network.
        options: of GDNP.
        steps: largest number of direction steps for each unit.
        tol: of each unit's gradient norm over sqrt(L).
        starts: first directions (units, size), instead of the units' weights.

    Returns:
        The run of each unit.
    """
    paths = []
    for index in range(len(units.weights)):
        objective = units.unit(index)
        start = units.weights[index] if starts is None else starts[index]
        own = float(np.sqrt(start @ units.design.second_moment(start)))
        points = []
        for point in gdnp(objective, start, options, 1.0 if starts is not None else own):
            points.append(point)
            if point.residual <= tol or point.step >= steps:
                break
        before = objective.value(objective.direction(units.weights[index]), own)
        if starts is not None or points[-1].value <= before:
            units.weights[index] = points[-1].weights
        paths.append(_unit_path(index, objective, points, options))
    return paths


def _unit_path(
    index: int, objective: UnitObjective, points: list[Iterate], options: Options
) -> UnitPath:
    last = points[-1]
    nothing = np.full(len(points), np.nan)
    left = dual_residual(objective, last) ** 2 / (2 * (objective.loss.curvature_bound or 1.0))
    path = UnitPath(index, nothing, nothing, last.residual, last.step, left)
    if not objective.design.moments.formed or not objective.smallest:
        return path
    gradient = [float(p.gradient @ objective.design.solve(p.gradient)) for p in points]
    bound = _bound(objective, points, options.length_tolerance)
    return replace(path, gradient=np.array(gradient), bound=bound)


def _bound(objective: UnitObjective, points: list[Iterate], tolerance: float) -> Array:
    """Return the right side of the unit's inequality at every step."""
    assert objective.smallest is not None
    ratio = 1 - objective.smallest / objective.largest
    quotient = float(objective.mean @ objective.design.solve(objective.mean))
    gap = max(quotient - points[0].direction.mean ** 2, 0.0)
    fixed, per_length = objective.constant
    smoothness = (objective.loss.curvature_bound or np.nan) * objective.largest
    bounds = []
    for point in points:
        factor = (fixed + per_length * point.length) ** 2
        width = point.bisected.right - point.bisected.left
        slack = 2.0**-point.bisected.halvings * smoothness * width / objective.smallest
        slack = min(slack, tolerance) if point.bisected.early else slack
        bounds.append(ratio ** (2 * point.step) * factor * gap + slack**2)
    return np.array(bounds)


def refit_outputs(units: HiddenUnits, max_iter: int, tol: float) -> None:
    """Optimize the outgoing weights by GDNP on the activations, in place.

    Args:
        units: the network.
        max_iter: largest number of steps.
        tol: of the gradient's norm over sqrt(L).
    """
    activations = units.activations()  # they include the sign -y, so that z = activations
    design = SignedDesign(activations, np.full(len(activations), -1.0), False, units.design.weights)
    options = Options(max_length=_LONGEST_OUTPUT, length_tolerance=tol / 10)
    before = units.value()
    start = units.outputs if np.any(units.outputs) else None
    found = minimum(SampleObjective(design, units.loss), options, max_iter, tol, start)
    if found.value <= before:
        units.outputs[:] = found.weights
