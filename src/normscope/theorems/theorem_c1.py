"""Theorem C.1: the largest curvature of the loss in the weights, through batch normalization."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.theorems.layer_case import LayerCase, Units, inner
from normscope.theorems.statement import Sides, statement

_HALVINGS = 200
_ROUNDING = 1e-13  # relative size of a component that is rounding error


@statement(forms=("exact", "printed"), needs=("y", "g", "H"), sums=False)
def theorem_c1(case: LayerCase, form: str) -> Sides:
    r"""The largest curvature along the weight gradient over bounded inputs is that on a ball.

    .. math:: \max_{\|X\| \le \lambda} \hat\beta(X) = \lambda^4 \max_{|v - d/2| \le |d|/2}
        v^\top \hat H v, \qquad \hat\beta = (X^\top d)^\top (X^\top \hat H X) (X^\top d)

    since the vectors :math:`XX^\top d` fill that ball times :math:`\lambda^2`; gradient and
    Hessian are fixed while the input matrix X varies. So the maximum lies between
    :math:`\lambda^4 d^\top \hat H d` and :math:`\lambda^4 |d|^2 [\lambda_{\max}(\hat H)]_+`.

    Printed: (58) takes the lower end, reached by X = lambda I, for the maximum, which it is not
    in general, and concludes

    .. math:: \max \hat\beta < \frac{\gamma^2}{\sigma^2}\left(\max \beta - \lambda^4\kappa\right),
        \qquad \kappa = \frac{1}{m\gamma}\langle g,\hat y\rangle |d|^2,

    which fails in some convex cases where gamma is above s.

    Reference: santurkar2018, Theorem C.1, Eq. (58). Notation: lambda = bound; beta without a hat
    is that of g and H, the network without the layer.

    Args:
        case: in the exact form, left is the curvature by autograd at the X that attains the
            maximum, and right an upper bound by duality: if they are equal, both are the maximum.
        form: "exact" or "printed".

    Returns:
        The sides for each unit separately.
    """
    units, d = case.units, case.direction
    hessians = hessian_matrices(case)
    steepest = [
        ball_maximum(units.select(torch.tensor([i])).curvature_matrix(hessians[i]), d[i])
        for i in range(len(d))
    ]
    best = _column([each.value for each in steepest])
    power = case.bound**4
    if form == "printed":
        without = [ball_maximum(hessians[i], units.g[i]) for i in range(len(d))]
        rhs, terms = _printed_bound(units.without_eps(), d, without)
        return Sides("bound", power * best, power * rhs, power * (best + terms))
    points = torch.stack([each.point for each in steepest])
    attained = inner(points, case.curvature(points))
    size = inner(d, d) * _curvature_size(units, hessians)
    return Sides("identity", power * attained, power * best, power * size)


def hessian_matrices(case: LayerCase) -> Tensor:
    """Return the Hessian of each unit by its outputs as a matrix, formed of products.

    Args:
        case: the units.

    Returns:
        Matrices, (units, batch, batch).

    Raises:
        InputError: if the batch is larger than the limit.
    """
    y = case.units.y
    size = y.shape[-1]
    if size > case.dense_limit:
        raise InputError(
            f"this statement forms a matrix of the Hessian, up to a batch of {case.dense_limit}"
            f", got {size}; give a smaller batch or a larger limit."
        )
    eye = torch.eye(size, dtype=y.dtype, device=y.device)
    columns = [case.hessian(row.expand_as(y)) for row in eye]
    matrices = torch.stack(columns, -1)
    return (matrices + matrices.mT) / 2


def _curvature_size(units: Units, hessians: Tensor) -> Tensor:
    """Return the size of the terms of the Hessian by the inputs before cancellation."""
    curved = units.gamma.square() * torch.linalg.matrix_norm(hessians, 2)
    bent = 2 * units.y_hat.norm(dim=-1) * units.g.norm(dim=-1) + units.along.abs()
    size: Tensor = (curved + units.gamma.abs() * bent / units.batch_size) / units.scale.square()
    return size


def _printed_bound(units: Units, d: Tensor, without: list[BallMaximum]) -> tuple[Tensor, Tensor]:
    """Return the printed right side at a bound of one, and the size of its terms."""
    front = (units.gamma / units.scale).square() * _column([each.value for each in without])
    separation = units.gamma / (units.batch_size * units.scale.square())
    separation = separation * units.along * inner(d, d)
    return front - separation, front + separation.abs()


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class BallMaximum:
    """The maximum of a quadratic form on a ball.

    Args:
        point: the maximizer.
        value: an upper bound of the form on the ball, by Lagrange duality; the form at ``point``
            equals it up to rounding error, so that both are the maximum.
    """

    point: Tensor
    value: float


def ball_maximum(matrix: Tensor, diameter: Tensor) -> BallMaximum:
    r"""Return the maximum of v'Av over the ball whose diameter is from the origin to a point.

    .. math:: \max_{|v - a/2| \le |a|/2} v^\top A v = \frac{|a|^2}{4} \min_{\mu \ge \mu_0}
        \left(\mu + \hat a^\top A \hat a + b^\top (\mu - A)^{-1} b\right), \qquad b = A \hat a

    with :math:`\mu_0` the largest eigenvalue of A; 0, at the origin, if none is positive. The
    right side bounds the left for every such mu; at the best one both are equal.

    Args:
        matrix: A, symmetric, (size, size).
        diameter: a, (size,).

    Returns:
        The maximum.

    >>> found = ball_maximum(torch.diag(torch.tensor([1.0, 0.0])), torch.tensor([2.0, 0.0]))
    >>> round(found.value, 4), found.point
    (4.0, tensor([2., 0.]))
    """
    length = float(diameter.norm())
    values, vectors = torch.linalg.eigh(matrix)
    if length == 0 or float(values[-1]) <= 0:
        return BallMaximum(torch.zeros_like(diameter), 0.0)
    direction = diameter / length
    a = vectors.T @ direction
    gaps = values[-1] - values
    shift, offset = _maximizer(gaps, values * a)
    dual = float(values[-1]) + shift + float(a @ (values * a + values * offset))
    point = (vectors @ offset + direction) * (length / 2)
    return BallMaximum(point, length**2 / 4 * dual)


def _maximizer(gaps: Tensor, b: Tensor) -> tuple[float, Tensor]:
    """Return the multiplier minus the top eigenvalue, and the maximizer in the unit ball."""
    low, high = 0.0, float(b.norm())
    if high == 0:
        return 0.0, _fill(torch.zeros_like(b))
    top = gaps <= _ROUNDING * float(gaps[0])
    if float(b[top].norm()) <= _ROUNDING * high:
        rest = torch.where(top, torch.zeros_like(b), b / gaps)
        if rest.norm() <= 1:  # the part along the top eigenvector is free
            return 0.0, _fill(rest)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if (b / (gaps + middle)).norm() > 1 else (low, middle)
    return high, b / (gaps + high)


def _fill(rest: Tensor) -> Tensor:
    """Return the vector with its last component increased until the length is one."""
    missing = (1 - rest.square().sum()).clamp(min=0).sqrt()
    return torch.cat([rest[:-1], rest[-1:] + missing])
