"""GDNP over the hidden units in turn, with the bound that each of them should keep to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from normscope.decoupled.classifier import minimum
from normscope.decoupled.gdnp import Iterate, gdnp
from normscope.decoupled.gdnp_options import Options
from normscope.decoupled.halfspace import SampleObjective
from normscope.decoupled.hidden_units import HiddenUnits, UnitObjective
from normscope.decoupled.signed_design import SignedDesign

__all__ = ["Trained", "UnitPath", "refit_outputs", "sweep", "train_units"]

Array = NDArray[np.float64]

_LONGEST_OUTPUT = 20.0  # root mean square of F: beyond it the logistic loss is flat


@dataclass(frozen=True, eq=False)
class UnitPath:
    r"""GDNP on one unit: its gradient, and the bound of the article with its constant made good.

    .. math::
        |\nabla f|_{S^{-1}}^2 \le (1 - \mu/L)^{2t}\, C\, (\rho(w_0) - \rho^*)
        + \left(2^{-T_s} \zeta |b - a| / \mu\right)^2

    It is proved for Gaussian z = -yx, with the neighbours on the line of S^{-1}u. On other data the
    gradient may exceed it: there it is a number to compare with, not a guarantee.

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization. C bounds
    the square of the factor of u in the gradient along the path.

    Args:
        unit: which one.
        gradient: the squared norm of the gradient in S^{-1}, at every step; nan where S is not
            formed.
        bound: the right side at every step, assuming Gaussian z; nan too.
        residual: norm of the last gradient over sqrt(L).
        steps: of the direction.
    """

    unit: int
    gradient: Array
    bound: Array
    residual: float
    steps: int


@dataclass(frozen=True, eq=False)
class Trained:
    """A network after its sweeps.

    Args:
        units: the network.
        first: the first turn of each unit.
        last: the last one.
        sweeps: how many.
        converged: the last sweep brought no more than the tolerance.
    """

    units: HiddenUnits
    first: list[UnitPath]
    last: list[UnitPath]
    sweeps: int
    converged: bool

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        values = {"units": len(self.last), "sweeps": self.sweeps, "converged": self.converged}
        return pairs_html(values, "Hidden units, trained by turns")


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
    """Sweep over the units until the objective falls no more; changes them in place.

    Args:
        units: the network.
        starts: first directions, in place of the units' own weights in the first sweep.
        options: how GDNP runs; the bisection may end at a thousandth of ``tol``.
        unit_steps: direction steps of a unit in one sweep, at most.
        max_sweeps: over all units, at most.
        tol: a sweep that lowers the objective by no more than this is the last.
        refit: choose the outgoing weights anew after each sweep.

    Returns:
        The network and how its units came there.
    """
    tolerance = tol / 100  # of the gradients: the objective feels their squares
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
        converged, before, count = before - value <= tol, value, count + 1
    return Trained(units, first, paths, count, converged)


def sweep(
    units: HiddenUnits, options: Options, steps: int, tol: float, starts: Array | None = None
) -> list[UnitPath]:
    """Let every unit take its turn; the units' weights are changed in place.

    Args:
        units: the network.
        options: how GDNP runs.
        steps: of the direction for each unit, at most.
        tol: of each unit's gradient norm over sqrt(L).
        starts: first directions (units, size) in place of the units' own weights.

    Returns:
        What happened to each unit.
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
    path = UnitPath(index, nothing, nothing, last.residual, last.step)
    if not objective.design.formed or not objective.smallest:
        return path
    gradient = [float(p.gradient @ objective.design.solve(p.gradient)) for p in points]
    bound = _bound(objective, points, options.length_tolerance)
    return replace(path, gradient=np.array(gradient), bound=bound)


def _bound(objective: UnitObjective, points: list[Iterate], tolerance: float) -> Array:
    """The right side of the unit's inequality, with the bisection's interval of each step."""
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
    """Choose the outgoing weights best for the units as they are, by GDNP on their activations.

    Args:
        units: the network; its outgoing weights are changed in place.
        max_iter: steps, at most.
        tol: of the gradient's norm over sqrt(L).
    """
    activations = units.activations()  # they hold the sign -y already, so that z = activations
    design = SignedDesign(activations, np.full(len(activations), -1.0), False, units.design.weights)
    options = Options(max_length=_LONGEST_OUTPUT, length_tolerance=tol / 10)
    before = units.value()
    start = units.outputs if np.any(units.outputs) else None
    found = minimum(SampleObjective(design, units.loss), options, max_iter, tol, start)
    if found.value <= before:
        units.outputs[:] = found.weights
