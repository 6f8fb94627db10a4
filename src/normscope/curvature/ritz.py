"""Approximate eigenpairs, and which of them are wanted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.registry import unknown_name

__all__ = ["WHICH", "RitzPairs", "wanted_positions"]

WHICH = ("largest", "smallest", "both", "magnitude")


@dataclass(frozen=True)
class RitzPairs:
    """Approximate eigenpairs in the space searched so far.

    Args:
        values: float64, in the order asked for.
        coefficients: the vectors in the basis, one column each.
        residuals: the norm of A v - theta v for each.
        errors: how far each value is from its eigenvalue, estimated.
        norm: the largest magnitude of an eigenvalue seen, a lower bound of the operator's norm.
    """

    values: Tensor
    coefficients: Tensor
    residuals: Tensor
    errors: Tensor
    norm: float


def wanted_positions(values: Tensor, which: str, count: int) -> Tensor:
    """Where the wanted eigenvalues are among ascending ones, the most wanted first.

    Args:
        values: ascending.
        which: "largest", "smallest", "both" (``count`` of either) or "magnitude".
        count: how many.

    Returns:
        Their positions; fewer than ``count`` if there are no more.

    >>> wanted_positions(torch.tensor([-3.0, 0.0, 2.0]), "magnitude", 2)
    tensor([0, 2])
    """
    if which not in WHICH:
        raise unknown_name("choice of eigenvalues", which, WHICH)
    places = torch.arange(len(values), device=values.device)
    largest, smallest = places.flip(0)[:count], places[:count]
    if which == "both":
        return torch.cat([largest, smallest[: len(values) - len(largest)]])
    if which == "magnitude":
        return values.abs().argsort(descending=True)[:count]
    return largest if which == "largest" else smallest
