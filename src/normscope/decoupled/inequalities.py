"""Both sides of the inequalities proved for GDNP on Gaussian halfspaces."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.decoupled.design import SignedDesign
from normscope.decoupled.gdnp import Iterate
from normscope.decoupled.halfspace import Objective
from normscope.decoupled.paths import PathResult
from normscope.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Inequalities(PathResult):
    r"""Both inequalities and their sum, at every point of a path.

    .. math::
        |w|_S^2 |\nabla_w f|_{S^{-1}}^2 \le (1 - \mu/L)^{2t} \Phi^2 \gamma^2 (\rho_0 - \rho^*),
        \qquad (\partial_\gamma f)^2 \le (2^{-T_s} \zeta |b - a| / \mu)^2

    .. math:: |\nabla f|_{S^{-1}}^2 \le (1 - \mu/L)^{2t} \Phi^2 (\rho_0 - \rho^*)
              + (2^{-T_s} \zeta |b - a| / \mu)^2

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization, which
    prints the right side of the second without the square, and the norm of the third without
    saying that it is that of S^{-1}.

    Args:
        direction_left: of the first.
        direction_right: of the first.
        length_left: of the second.
        length_right: of the second; NaN if the length is at its bound.
        whole_left: of the third.
        whole_right: of the third; NaN if the length is at its bound.
    """

    direction_left: Array
    direction_right: Array
    length_left: Array
    length_right: Array
    whole_left: Array
    whole_right: Array

    def _columns(self) -> dict[str, Array]:
        return dict(vars(self))

    def _heading(self) -> tuple[str, list[str]]:
        return "inequalities of GDNP, left and right sides", []


def direction_constant(slope_bound: float, quotient: float) -> float:
    r"""Return a bound of the factor c_1 = E phi' - E phi'' u'w_tilde of the gradient.

    .. math:: |c_1| \le \max|\phi'|\; E|1 + t n|, \quad t^2 = q / (1 - q), \; q = u^T S^{-1} u

    with standard normal n, by Stein's identity. The article's Phi, read as a bound of phi' alone,
    is too small: the sigmoid exceeds it if (u'w)^2 > \|w\|_S^2 / 2.

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization.

    Args:
        slope_bound: of phi' in magnitude.
        quotient: u'S^{-1}u, below one for Gaussian z.

    Returns:
        The bound.

    >>> direction_constant(1.0, 0.0)
    1.0
    """
    if quotient <= 0:
        return slope_bound
    if quotient >= 1:
        return math.inf
    t = math.sqrt(quotient / (1 - quotient))
    folded = t * math.sqrt(2 / math.pi) * math.exp(-1 / (2 * t * t)) + math.erf(
        1 / (t * math.sqrt(2))
    )
    return slope_bound * folded


def inequalities(objective: Objective, design: SignedDesign, path: list[Iterate]) -> Inequalities:
    """Return the left and right sides along a path of GDNP.

    Args:
        objective: that was minimized, with a loss whose bounds are known.
        design: the samples with the moments of the objective.
        path: its points, from the first on.

    Returns:
        Both sides of each inequality.

    Raises:
        InputError: if S is singular or not formed, or the bounds of the loss are not known.
    """
    first, second = objective.loss.slope_bound, objective.loss.curvature_bound
    if not objective.smallest or first is None or second is None:
        raise InputError("the inequalities need S > 0, held as a matrix, and a loss with bounds.")
    quotient = float(objective.mean @ design.solve(objective.mean))
    constant = direction_constant(first, quotient)
    start = max(quotient - path[0].direction.mean ** 2, 0.0)
    factors = np.array([(1 - objective.smallest / objective.largest) ** (2 * p.step) for p in path])
    lengths = np.array([p.length for p in path])
    direction_right = factors * constant**2 * start
    smoothness = second * objective.largest
    length_right = np.array([_bisection_bound(p, smoothness / objective.smallest) for p in path])
    lefts = [_squares(objective, design, p) for p in path]
    turning, length_left = (np.array(each) for each in zip(*lefts, strict=True))
    return Inequalities(
        direction_left=lengths**2 * turning,
        direction_right=lengths**2 * direction_right,
        length_left=length_left,
        length_right=length_right,
        whole_left=np.array([float(p.gradient @ design.solve(p.gradient)) for p in path]),
        whole_right=direction_right + length_right,
    )


def _bisection_bound(point: Iterate, lipschitz: float) -> float:
    found = point.bisected
    if found.at_bound:
        return math.nan
    return float((2.0**-found.halvings * lipschitz * (found.right - found.left)) ** 2)


def _squares(objective: Objective, design: SignedDesign, point: Iterate) -> tuple[float, float]:
    """Return the squared S^{-1} norm of the gradient across w, and the squared length slope."""
    across = point.direction.across(point.gradient)
    slope = objective.length_slope(point.direction, point.length)
    return float(across @ design.solve(across)), slope**2
