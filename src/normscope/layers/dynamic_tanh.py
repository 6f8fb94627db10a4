"""Dynamic tanh: an elementwise function in place of normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normscope.layers.kinds import norm_kind


class DynamicTanh(nn.Module):
    r"""Hyperbolic tangent with a learned slope, in place of a norm layer.

    .. math:: y = \gamma \tanh(\alpha x) + \beta

    It computes no statistics: the output is bounded, but it depends on the scale of the input.

    Reference: zhu2025. Notation: gamma = weight and beta = bias, one value
    per channel; alpha is one value.

    Args:
        num_features: channels of the input.
        dimensions: spatial dimensions behind the channels; 0 for channels in the last dimension.
        alpha: its initial value.
        affine: learn gamma and beta; without, only alpha is learned.
        bias: learn beta, if affine.
        device: of the parameters.
        dtype: of the parameters.

    >>> layer = DynamicTanh(3)
    >>> layer(torch.tensor([[0.0, 100.0, -100.0]])).tolist()
    [[0.0, 1.0, -1.0]]
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        dimensions: int = 0,
        alpha: float = 0.5,
        affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_features, self.dimensions = num_features, dimensions
        ones = torch.ones(num_features, device=device, dtype=dtype)
        self.alpha = nn.Parameter(torch.full_like(ones[:1], alpha))
        self.weight = nn.Parameter(ones) if affine else None
        self.bias = nn.Parameter(torch.zeros_like(ones)) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the bounded values of (..., channels, *positions)."""
        shape = (-1, *[1] * self.dimensions)
        y = torch.tanh(self.alpha * x)
        if self.weight is not None:
            y = y * self.weight.reshape(shape)
        return y if self.bias is None else y + self.bias.reshape(shape)

    def extra_repr(self) -> str:
        """Return the sizes, for the printed module."""
        return f"{self.num_features}, dimensions={self.dimensions}"


@norm_kind("dyt", DynamicTanh, features_last=True, channelwise=True)
def dynamic_tanh(
    num_features: int,
    dimensions: int,
    alpha: float = 0.5,
    affine: bool = True,
    bias: bool = True,
    **options: Any,
) -> nn.Module:
    """Dynamic tanh: no statistics, but a bounded function with a learned slope.

    Reference: zhu2025.
    """
    return DynamicTanh(num_features, dimensions, alpha, affine, bias, **options)
