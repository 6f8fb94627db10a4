"""Lemma 4.5: batch normalization brings the nearest optimum closer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.errors import InputError, ShapeError
from normscope.theorems.layer_case import as_vector, inner
from normscope.theorems.statement import Sides, statement

PREMISE = "<W0, W*> > 0"
_POINTS = 51
_NARROWINGS = 9  # by 25 each, below the square root of the rounding error


@dataclass(frozen=True, eq=False)
class StartAndOptimum:
    """Weights at the start and an optimum of the network without normalization, (1, size) each."""

    start: Tensor
    optimum: Tensor


def start_and_optimum(start: Any, optimum: Any) -> StartAndOptimum:
    """Return the case of the lemma from weights of one shape.

    Args:
        start: initial weights.
        optimum: weights of an optimum, not all zero.

    Returns:
        The pair.

    Raises:
        ShapeError: if the shapes differ.
        InputError: if the optimum is zero.
    """
    first, second = (torch.as_tensor(each, dtype=torch.float64) for each in (start, optimum))
    if first.shape != second.shape:
        raise ShapeError(
            f"start and optimum must have one shape, got {tuple(first.shape)} and "
            f"{tuple(second.shape)}."
        )
    first, second = as_vector(first.reshape(-1), "start"), as_vector(second.reshape(-1), "optimum")
    if not second.any():
        raise InputError("the optimum must not be zero: its multiples do not form a ray.")
    return StartAndOptimum(first.unsqueeze(0), second.unsqueeze(0))


@statement(case=start_and_optimum, needs=("start", "optimum"))
def lemma_4_5(case: StartAndOptimum, form: str) -> Sides:
    r"""The squared distance to the ray of optima of a scale-invariant network.

    .. math:: \min_{k \ge 0} |W_0 - k W^*|^2 = |W_0 - W^*|^2 - \frac{1}{|W^*|^2}
        \left(|W^*|^2 - \langle W^*, W_0\rangle\right)^2 \quad\text{if } \langle W_0,W^*\rangle > 0,

    and :math:`|W_0|^2` otherwise: an identity. Printed: "at most", for a positive inner product,
    which is true. The article omits the condition, without which it is false: the right side is
    then the distance to a point :math:`k W^*` with negative k, which is another network.

    Reference: santurkar2018, Lemma 4.5.

    Args:
        case: left is the distance to the nearest point of the ray, found by narrowing a grid.
        form: "exact", "printed" or "article".

    Returns:
        The sides.
    """
    start, optimum = case.start, case.optimum
    aligned, length = inner(start, optimum), inner(optimum, optimum)
    offset = start - optimum
    distance, gained = inner(offset, offset), (length - aligned).square() / length
    rhs = distance - gained
    if form == "exact":
        rhs = torch.where(aligned > 0, rhs, inner(start, start))
    size = inner(start, start) + length + distance + gained
    lhs = _ray_distance(start, optimum)
    if form == "printed":
        return Sides("bound", lhs, rhs, size, PREMISE, aligned > 0)
    return Sides("identity" if form == "exact" else "bound", lhs, rhs, size)


def _ray_distance(start: Tensor, optimum: Tensor) -> Tensor:
    """Return the least squared distance from the start to k times the optimum, k >= 0."""
    low, high = 0.0, 2 * float(start.norm() / optimum.norm()) + 1
    for _ in range(_NARROWINGS):
        grid = torch.linspace(low, high, _POINTS, dtype=torch.float64)
        distances = (start - grid.unsqueeze(-1) * optimum).square().sum(-1)
        best = int(distances.argmin())
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, _POINTS - 1)])
    return distances.min().unsqueeze(0)
