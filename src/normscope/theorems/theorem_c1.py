"""Theorem C.1: how curved the loss can be in the weights, through batch normalization."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.theorems.ball import BallMaximum, ball_maximum
from normscope.theorems.situation import Situation
from normscope.theorems.statement import Sides, statement
from normscope.theorems.unit import Units, inner

__all__ = ["hessian_matrices", "theorem_c1"]


@statement(forms=("exact", "printed"), needs=("y", "g", "H"), sums=False)
def theorem_c1(subject: Situation, form: str) -> Sides:
    r"""The largest curvature along the weight gradient over bounded inputs is that on a ball.

    .. math:: \max_{\|X\| \le \lambda} \hat\beta(X) = \lambda^4 \max_{|v - d/2| \le |d|/2}
        v^\top \hat H v, \qquad \hat\beta = (X^\top d)^\top (X^\top \hat H X) (X^\top d)

    since the vectors :math:`XX^\top d` fill that ball times :math:`\lambda^2`; gradient and
    Hessian are held fixed while the input matrix X varies. So the maximum lies between
    :math:`\lambda^4 d^\top \hat H d` and :math:`\lambda^4 |d|^2 [\lambda_{\max}(\hat H)]_+`.

    Printed: (58) takes the lower end, reached by X = lambda I, for the maximum, which it is not
    in general, and concludes

    .. math:: \max \hat\beta < \frac{\gamma^2}{\sigma^2}\left(\max \beta - \lambda^4\kappa\right),
        \qquad \kappa = \frac{1}{m\gamma}\langle g,\hat y\rangle |d|^2,

    which fails in some convex cases where gamma is above s.

    Reference: santurkar2018, Theorem C.1, Eq. (58). Notation: lambda = bound; beta without a hat
    is that of g and H, the network without the layer.

    Args:
        subject: left, in the exact form, the curvature by autograd at the X that attains the
            maximum, and right an upper bound from duality: equal, they prove each other.
        form: "exact" or "printed".

    Returns:
        The sides, of each unit by itself.
    """
    units, d = subject.units, subject.direction
    hessians = hessian_matrices(subject)
    steepest = [
        ball_maximum(units.select(_only(i)).curvature_matrix(hessians[i]), d[i])
        for i in range(len(d))
    ]
    best = _column([each.value for each in steepest])
    power = subject.bound**4
    if form == "printed":
        without = [ball_maximum(hessians[i], units.g[i]) for i in range(len(d))]
        rhs, terms = _printed_bound(units.without_eps(), d, without)
        return Sides("bound", power * best, power * rhs, power * (best + terms))
    points = torch.stack([each.point for each in steepest])
    attained = inner(points, subject.curvature(points))
    size = inner(d, d) * _curvature_size(units, hessians)
    return Sides("identity", power * attained, power * best, power * size)


def hessian_matrices(subject: Situation) -> Tensor:
    """The Hessian of each unit by its outputs as a matrix, made of products.

    Args:
        subject: the situation.

    Returns:
        Matrices, (units, batch, batch).

    Raises:
        InputError: if the batch is larger than the situation allows.
    """
    y = subject.units.y
    size = y.shape[-1]
    if size > subject.dense_limit:
        raise InputError(
            f"this statement makes a matrix of the Hessian, up to a batch of {subject.dense_limit}"
            f", got {size}; give a smaller batch or a larger limit."
        )
    eye = torch.eye(size, dtype=y.dtype, device=y.device)
    columns = [subject.hessian(row.expand_as(y)) for row in eye]
    matrices = torch.stack(columns, -1)
    return (matrices + matrices.mT) / 2


def _curvature_size(units: Units, hessians: Tensor) -> Tensor:
    """The size of the terms that the Hessian by the inputs is made of, before any cancels."""
    curved = units.gamma.square() * torch.linalg.matrix_norm(hessians, 2)
    bent = 2 * units.y_hat.norm(dim=-1) * units.g.norm(dim=-1) + units.along.abs()
    size: Tensor = (curved + units.gamma.abs() * bent / units.batch_size) / units.scale.square()
    return size


def _printed_bound(units: Units, d: Tensor, without: list[BallMaximum]) -> tuple[Tensor, Tensor]:
    """The printed right side at a bound of one, and the size of its terms."""
    front = (units.gamma / units.scale).square() * _column([each.value for each in without])
    separation = units.gamma / (units.batch_size * units.scale.square())
    separation = separation * units.along * inner(d, d)
    return front - separation, front + separation.abs()


def _only(index: int) -> Tensor:
    return torch.tensor([index])


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
