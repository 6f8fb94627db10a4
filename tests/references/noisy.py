"""Algorithm 1 with the noise given: loops over units and samples, nothing clever."""

from __future__ import annotations

import torch
from torch import Tensor


def noisy_batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, factor: Tensor, shift: Tensor
) -> Tensor:
    """Normalize each unit over the batch and its positions, then disturb each activation."""
    columns = []
    for unit in range(x.shape[1]):
        values = x[:, unit]
        mean = values.mean()
        variance = ((values - mean) ** 2).mean()
        column = weight[unit] * (values - mean) / torch.sqrt(variance + eps) + bias[unit]
        samples = [factor[i, unit] * column[i] + shift[i, unit] for i in range(len(x))]
        columns.append(torch.stack(samples))
    return torch.stack(columns, dim=1)
