"""Random cases to try a statement on: batches of many sizes, scales and shapes of loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["random_case"]

LARGEST_BATCH = 128


def random_case(
    generator: torch.Generator,
    *,
    batch_size: int | None = None,
    eps: float | None = None,
    convex: bool | None = None,
) -> dict[str, Any]:
    """Tensors for every statement, drawn anew.

    Batches of 2 to 128 values, standard deviations and gradients over six decades, gamma of either
    sign from a tenth to ten times what the layer divides by, gradients aligned with the batch or
    not, Hessians of any rank, convex or not, weights in few or many dimensions.

    Args:
        generator: the source of the numbers.
        batch_size: a fixed one; None for a random one.
        eps: a fixed one; None for 0, 1e-5, or a share of the variance.
        convex: whether the Hessian is positive semidefinite; None for either.

    Returns:
        The tensors by name.
    """
    m = _whole(generator, 2, LARGEST_BATCH) if batch_size is None else batch_size
    deviation = 10 ** _uniform(generator, -3, 3)
    y = deviation * (_normal(generator, m) + _uniform(generator, -3, 3))
    variance = float(y.var(correction=0))
    if eps is None:
        choices = (0.0, 1e-5, variance * 10 ** _uniform(generator, -4, 1))
        eps = choices[_whole(generator, 0, 2)]
    gamma = (variance + eps) ** 0.5 * 10 ** _uniform(generator, -1, 1)
    sign = 1 if _uniform(generator, 0, 1) < 0.5 else -1
    aligned = _uniform(generator, -2, 2) * (y - y.mean()) / variance**0.5
    size = _whole(generator, 1, 50)
    return {
        "y": y,
        "g": 10 ** _uniform(generator, -3, 3) * (_normal(generator, m) + aligned),
        "H": 10 ** _uniform(generator, -3, 3) * _hessian(generator, m, convex),
        "gamma": sign * gamma,
        "beta": _uniform(generator, -3, 3),
        "eps": eps,
        "bound": 10 ** _uniform(generator, -2, 2),
        "start": _normal(generator, size),
        "optimum": 10 ** _uniform(generator, -2, 2) * _normal(generator, size),
    }


def _hessian(generator: torch.Generator, m: int, convex: bool | None) -> Tensor:
    root = _normal(generator, m * _whole(generator, 1, m)).reshape(m, -1)
    matrix = root @ root.T / root.shape[1]
    if convex is None:
        convex = _uniform(generator, 0, 1) < 0.5
    if convex:
        return matrix
    other = _normal(generator, m * m).reshape(m, m)
    return matrix + (other + other.T) / 2


def _normal(generator: torch.Generator, size: int) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float64)


def _uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))


def _whole(generator: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (), generator=generator))
