"""Whole curvature matrices of small networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from normscope.curvature.operator import operator
from normscope.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from normscope.problem.loss import Loss, WholeLoss
    from normscope.problem.parameters import Parameters
    from normscope.problem.problem import Data

__all__ = ["dense"]

_LARGEST = 20_000  # 1.6 GB in float32


def dense(
    model: nn.Module,
    loss: Loss | WholeLoss | str,
    data: Data,
    kind: str = "fisher",
    mode: str = "train",
    params: Parameters = None,
    seed: int = 0,
) -> Tensor:
    """The whole curvature matrix, column by column; for small networks.

    Args:
        model: the model.
        loss: as for `operator`.
        data: as for `operator`.
        kind: "fisher", "ggn" or "hessian".
        mode: "train", "frozen" or "eval".
        params: as for `operator`.
        seed: as for `operator`.

    Returns:
        (size, size), symmetric up to rounding.

    Raises:
        InputError: if there are more than 20,000 parameter entries.

    >>> batch = (torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 1))
    >>> dense(torch.nn.Linear(2, 1, bias=False), "squared_error", batch, kind="hessian")
    tensor([[4.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    matrix = operator(model, loss, data, kind, mode, params, seed)
    size = matrix.shape[0]
    if size > _LARGEST:
        raise InputError(
            f"dense makes a matrix of {size} x {size} entries, more than {_LARGEST} x {_LARGEST}; "
            "use operator, top_eigenvalue or fewer params."
        )
    return matrix @ torch.eye(size, dtype=matrix.dtype, device=matrix.device)
