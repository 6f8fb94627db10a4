"""The largest value of a quadratic form on a ball whose surface passes through the origin."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BallMaximum", "ball_maximum"]

_HALVINGS = 200
_ROUNDING = 1e-13  # a component this small beside the largest is taken for none


@dataclass(frozen=True, eq=False)
class BallMaximum:
    """Where a quadratic form is largest on a ball, and the proof that it is.

    Args:
        point: the maximizer.
        value: an upper bound of the form on the ball, by Lagrange duality; the form at ``point``
            equals it up to rounding, so that both are the maximum.
    """

    point: Tensor
    value: float


def ball_maximum(matrix: Tensor, diameter: Tensor) -> BallMaximum:
    r"""The maximum of v'Av over the ball whose diameter runs from the origin to a point.

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
    """How far the multiplier is above the top eigenvalue, and the maximizer in the unit ball."""
    low, high = 0.0, float(b.norm())
    if high == 0:
        return 0.0, _filled(torch.zeros_like(b))
    top = gaps <= _ROUNDING * float(gaps[0])
    if float(b[top].norm()) <= _ROUNDING * high:
        rest = torch.where(top, torch.zeros_like(b), b / gaps)
        if rest.norm() <= 1:  # nothing fixes the part along the top: it fills what is left
            return 0.0, _filled(rest)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if (b / (gaps + middle)).norm() > 1 else (low, middle)
    return high, b / (gaps + high)


def _filled(rest: Tensor) -> Tensor:
    """The vector with its last component grown until the length is one."""
    missing = (1 - rest.square().sum()).clamp(min=0).sqrt()
    return torch.cat([rest[:-1], rest[-1:] + missing])
