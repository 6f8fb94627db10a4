"""Lemma 4.5: batch normalization brings the nearest optimum closer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.errors import InputError, ShapeError
from normscope.theorems.situation import as_vector
from normscope.theorems.statement import Sides, statement
from normscope.theorems.unit import inner

__all__ = ["StartAndOptimum", "lemma_4_5", "start_and_optimum"]

PREMISE = "<W0, W*> > 0"
_POINTS = 51
_NARROWINGS = 9  # by 25 each: beyond the square root of rounding, where the distance is flat


@dataclass(frozen=True, eq=False)
class StartAndOptimum:
    """Weights at the start and an optimum of the network without normalization, (1, size) each."""

    start: Tensor
    optimum: Tensor


def start_and_optimum(start: Any, optimum: Any) -> StartAndOptimum:
    """The subject of the lemma from plain weights, of any shape but the same.

    Args:
        start: initial weights.
        optimum: weights of an optimum, not all zero.

    Returns:
        The pair.

    Raises:
        ShapeError: if the shapes differ.
        InputError: if the optimum is zero, which has no ray.
    """
    first, second = (torch.as_tensor(each, dtype=torch.float64) for each in (start, optimum))
    if first.shape != second.shape:
        raise ShapeError(
            f"start and optimum must have one shape, got {tuple(first.shape)} and "
            f"{tuple(second.shape)}."
        )
    first, second = as_vector(first.reshape(-1), "start"), as_vector(second.reshape(-1), "optimum")
    if not second.any():
        raise InputError("the optimum is zero: its multiples are no ray to compare with.")
    return StartAndOptimum(first.unsqueeze(0), second.unsqueeze(0))


@statement(subject=start_and_optimum, needs=("start", "optimum"))
def lemma_4_5(subject: StartAndOptimum, form: str) -> Sides:
    r"""The squared distance to the ray of optima that a scale-invariant network has.

    .. math:: \min_{k \ge 0} |W_0 - k W^*|^2 = |W_0 - W^*|^2 - \frac{1}{|W^*|^2}
        \left(|W^*|^2 - \langle W^*, W_0\rangle\right)^2 \quad\text{if } \langle W_0,W^*\rangle > 0,

    and :math:`|W_0|^2` otherwise: an identity. Printed: "at most", for a positive inner product,
    which is true. The article leaves the condition out, without which it is false: the right side
    is then the distance to a point :math:`k W^*` with negative k, where the network computes
    something else.

    Reference: santurkar2018, Lemma 4.5.

    Args:
        subject: left the distance to the nearest point of the ray, found by narrowing an interval.
        form: "exact", "printed" or "article".

    Returns:
        The sides.
    """
    start, optimum = subject.start, subject.optimum
    aligned, length = inner(start, optimum), inner(optimum, optimum)
    offset = start - optimum
    distance, gained = inner(offset, offset), (length - aligned).square() / length
    rhs = distance - gained
    if form == "exact":
        rhs = torch.where(aligned > 0, rhs, inner(start, start))
    size = inner(start, start) + length + distance + gained
    lhs = _nearest(start, optimum)
    if form == "printed":
        return Sides("bound", lhs, rhs, size, PREMISE, aligned > 0)
    return Sides("identity" if form == "exact" else "bound", lhs, rhs, size)


def _nearest(start: Tensor, optimum: Tensor) -> Tensor:
    """The least squared distance from the start to a multiple k >= 0, by narrowing a grid."""
    low, high = 0.0, 2 * float(start.norm() / optimum.norm()) + 1
    for _ in range(_NARROWINGS):
        grid = torch.linspace(low, high, _POINTS, dtype=torch.float64)
        distances = (start - grid.unsqueeze(-1) * optimum).square().sum(-1)
        best = int(distances.argmin())
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, _POINTS - 1)])
    return distances.min().unsqueeze(0)
