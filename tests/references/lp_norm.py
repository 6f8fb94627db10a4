"""l_p normalization by its definition: one channel after another, one value after another."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def lp_norm(
    x: Tensor, weight: Tensor, bias: Tensor, p: float, centred: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, mean and scale, differentiable by autograd."""
    channels = x.transpose(0, 1).flatten(1)
    outputs, means, scales = [], [], []
    for values, gamma, beta in zip(channels, weight, bias, strict=True):
        mean = sum(values) / len(values)
        sizes = [(v - mean if centred else v).abs() for v in values]
        if p == math.inf:
            scale = torch.stack(sizes).max() + eps
        else:
            scale = (sum(size**p for size in sizes) / len(sizes) + eps) ** (1 / p)
        outputs.append(gamma * (values - mean) / scale + beta)
        means.append(mean)
        scales.append(scale)
    inner = x.transpose(0, 1).shape
    return torch.stack(outputs).view(inner).transpose(0, 1), torch.stack(means), torch.stack(scales)
