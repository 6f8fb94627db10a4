"""Functions and methods of tensors as the modules that compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["MODULES", "Average", "Reshape"]


class Reshape(nn.Module):
    """The same entries in another shape, samples first.

    Args:
        shape: the new one; None stands for the number of samples.
    """

    def __init__(self, *shape: int | None) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, inputs: Tensor) -> Tensor:
        """The tensor in the new shape."""
        return inputs.reshape([len(inputs) if size is None else size for size in self.shape])


class Average(nn.Module):
    """The mean over some dimensions.

    Args:
        dim: the dimensions.
        keepdim: whether they stay, of size one.
    """

    def __init__(self, dim: int | tuple[int, ...] | list[int], keepdim: bool = False) -> None:
        super().__init__()
        self.dim, self.keepdim = dim, keepdim

    def forward(self, inputs: Tensor) -> Tensor:
        """The mean."""
        return inputs.mean(self.dim, self.keepdim)


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    return nn.Dropout(p) if training else nn.Identity()


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _max_pool(dimensions: int) -> Callable[..., nn.Module]:
    kind = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[dimensions - 1]

    def make(
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> nn.Module:
        return kind(kernel_size, stride, padding, dilation, return_indices, ceil_mode)

    return make


def _leaky_relu(negative_slope: float = 0.01, inplace: bool = False) -> nn.Module:
    return nn.LeakyReLU(negative_slope)


def _elu(alpha: float = 1.0, inplace: bool = False) -> nn.Module:
    return nn.ELU(alpha)


def _in_place_or_not(kind: Callable[[], nn.Module]) -> Callable[..., nn.Module]:
    def make(inplace: bool = False) -> nn.Module:
        return kind()

    return make


# functions and methods of tensors, and the module that does the same with the same arguments
MODULES: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((functional.relu, torch.relu, "relu"), _in_place_or_not(nn.ReLU)),
    **dict.fromkeys((functional.tanh, torch.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((functional.sigmoid, torch.sigmoid, "sigmoid"), nn.Sigmoid),
    **dict.fromkeys((torch.flatten, "flatten"), _flatten),
    **dict.fromkeys((torch.mean, "mean"), Average),
    functional.gelu: nn.GELU,
    functional.silu: _in_place_or_not(nn.SiLU),
    functional.mish: _in_place_or_not(nn.Mish),
    functional.relu6: _in_place_or_not(nn.ReLU6),
    functional.selu: _in_place_or_not(nn.SELU),
    functional.softplus: nn.Softplus,
    functional.leaky_relu: _leaky_relu,
    functional.elu: _elu,
    functional.dropout: _dropout,
    functional.max_pool1d: _max_pool(1),
    functional.max_pool2d: _max_pool(2),
    functional.max_pool3d: _max_pool(3),
    functional.avg_pool1d: nn.AvgPool1d,
    functional.avg_pool2d: nn.AvgPool2d,
    functional.avg_pool3d: nn.AvgPool3d,
    functional.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d,
    functional.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d,
    functional.adaptive_avg_pool3d: nn.AdaptiveAvgPool3d,
}
