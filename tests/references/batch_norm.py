"""Batch normalization the slow way: channel by channel, with dense Jacobians."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def normalized(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The definition on one channel after the other; plain autograd differentiates it."""
    channels = []
    for index in range(x.size(1)):
        values = x[:, index]
        mean = values.sum() / values.numel()
        variance = ((values - mean) ** 2).sum() / values.numel()
        result = (values - mean) / torch.sqrt(variance + eps)
        if weight is not None:
            result = result * weight[index]
        if bias is not None:
            result = result + bias[index]
        channels.append(result)
    return torch.stack(channels, dim=1)


def input_gradient(x: Tensor, weight: Tensor, gradient: Tensor, eps: float) -> Tensor:
    """The dense m x m Jacobian of every channel (santurkar2018, Fact C.2), transposed times g."""
    result = torch.empty_like(x)
    for index in range(x.size(1)):
        values = x[:, index].reshape(-1)
        m = values.numel()
        deviation = values - values.mean()
        spread = torch.sqrt(deviation.square().mean() + eps)
        standardized = deviation / spread
        identity = torch.eye(m, dtype=x.dtype)
        outer = torch.outer(standardized, standardized)
        jacobian = weight[index] / spread * (identity - 1 / m - outer / m)
        flat = jacobian.T @ gradient[:, index].reshape(-1)
        result[:, index] = flat.reshape(x[:, index].shape)
    return result


def running(x: Tensor, mean: Tensor, variance: Tensor, momentum: float) -> tuple[Tensor, Tensor]:
    """Running mean and variance after one batch."""
    per_channel = x.transpose(0, 1).flatten(1)
    new_mean = (1 - momentum) * mean + momentum * per_channel.mean(1)
    new_variance = (1 - momentum) * variance + momentum * per_channel.var(1, unbiased=True)
    return new_mean, new_variance


def hessian(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """Second derivatives one row at a time, by backward through backward."""
    point = point.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(point), point, create_graph=True)
    rows = [torch.autograd.grad(entry, point, retain_graph=True)[0] for entry in gradient]
    return torch.stack(rows)
