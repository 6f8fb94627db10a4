"""Kinds of normalization that treat each sample by itself: layer, group, rms, instance, dyt."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from normscope.errors import InputError
from normscope.layers.detect import positionwise_norm
from normscope.layers.kinds import norm_kind
from normscope.problem.modes import refuse_lazy

_OPTIONS = ("eps", "affine", "bias")
_FEWEST_UNITS = 4  # per group of a vector


def _is_layer_norm(module: nn.Module) -> bool:
    if isinstance(module, nn.GroupNorm):
        return module.num_groups == 1
    found = positionwise_norm(module)
    return isinstance(module, nn.LayerNorm) if found is None else found.kind == "layer"


@norm_kind("layer", matches=_is_layer_norm, options=_OPTIONS, features_last=True)
def layer_norm(
    num_features: int, dimensions: int, affine: bool = True, **options: Any
) -> nn.Module:
    """Layer normalization; with spatial dimensions, over channels and positions together.

    Reference: ba2016.
    """
    if dimensions == 0:
        return nn.LayerNorm(num_features, elementwise_affine=affine, **options)
    return nn.GroupNorm(1, num_features, affine=affine, **options)


@norm_kind(
    "group",
    matches=lambda module: isinstance(module, nn.GroupNorm) and module.num_groups > 1,
    options=_OPTIONS,
)
def group_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Group normalization in gcd(32, channels) groups; of vectors in fewer, see `group_count`.

    Reference: wu2018.
    """
    return nn.GroupNorm(group_count(num_features, dimensions), num_features, **options)


def group_count(num_features: int, dimensions: int) -> int:
    """Return the groups of "group": gcd(32, channels); fewer for vectors, of at least 4 units.

    Normalizing a group of one or two units without positions would leave only their signs.

    Args:
        num_features: channels.
        dimensions: spatial dimensions, 0 for vectors.

    Returns:
        The number of groups.

    >>> group_count(64, 2), group_count(64, 0), group_count(1000, 0)
    (32, 16, 8)
    """
    groups = math.gcd(32, num_features)
    while dimensions == 0 and groups > 1 and num_features // groups < _FEWEST_UNITS:
        groups //= 2
    return groups


def _scale_and_shift(
    y: Tensor, weight: Tensor | None, bias: Tensor | None, dimensions: int
) -> Tensor:
    """Return weight * y + bias per channel, with spatial dimensions behind the channels."""
    shape = (-1, *[1] * dimensions)
    if weight is not None:
        y = y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


class ShiftedRMSNorm(nn.RMSNorm):
    r"""RMS normalization of the last dimension with a shift, which :class:`torch.nn.RMSNorm` lacks.

    .. math:: y = \gamma \frac{x}{\sqrt{\langle x^2 \rangle + \epsilon}} + \beta

    It takes the place of a layer normalization whose shift is to be kept.

    Reference: zhang2019. Notation: gamma = weight, beta = bias.

    Args:
        num_features: size of the last dimension.
        eps: added to the mean square.
        device: of the parameters.
        dtype: of the parameters.

    >>> layer = ShiftedRMSNorm(2, eps=0.0)
    >>> _ = layer.bias.data.fill_(1.0)
    >>> layer(torch.tensor([[5.0, -5.0]])).tolist()
    [[2.0, 0.0]]
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(num_features, eps, device=device, dtype=dtype)
        self.bias = nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension of (..., features)."""
        return super().forward(x) + self.bias


class SampleRMSNorm(nn.Module):
    r"""RMS normalization over channels and positions of each sample together.

    .. math:: y = \gamma \frac{x}{\sqrt{\langle x^2 \rangle + \epsilon}} + \beta

    As :class:`torch.nn.GroupNorm` with one group, without subtracting the mean.

    Reference: zhang2019. Notation: gamma = weight, beta = bias, one value per channel.

    Args:
        num_features: channels of the input, (batch, channels, *positions).
        eps: added to the mean square.
        affine: learn gamma.
        shift: learn beta, if affine.
        device: of the parameters.
        dtype: of the parameters.

    >>> SampleRMSNorm(1, eps=0.0)(torch.tensor([[[3.0, 4.0]]])).square().mean().item()
    1.0
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        shift: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_features, self.eps = num_features, eps
        ones = torch.ones(num_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(ones) if affine else None
        self.bias = nn.Parameter(torch.zeros_like(ones)) if affine and shift else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each sample of (batch, channels, *positions)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        square = wide.square().mean(tuple(range(1, x.dim())), keepdim=True)
        y = (wide * torch.rsqrt(square + self.eps)).to(x.dtype)
        return _scale_and_shift(y, self.weight, self.bias, x.dim() - 2)

    def extra_repr(self) -> str:
        """Return the options, for the printed module."""
        has = self.weight is not None, self.bias is not None
        return f"{self.num_features}, eps={self.eps}, affine={has[0]}, shift={has[1]}"


def _is_rms_norm(module: nn.Module) -> bool:
    found = positionwise_norm(module)
    kinds = (nn.RMSNorm, SampleRMSNorm)
    return isinstance(module, kinds) if found is None else found.kind == "rms"


@norm_kind(
    "rms", nn.RMSNorm, ShiftedRMSNorm, SampleRMSNorm, matches=_is_rms_norm, features_last=True
)
def rms_norm(
    num_features: int,
    dimensions: int,
    eps: float = 1e-5,
    affine: bool = True,
    shift: bool = False,
    **options: Any,
) -> nn.Module:
    """RMS normalization; with spatial dimensions, over channels and positions together.

    Reference: zhang2019.
    """
    if dimensions > 0:
        return SampleRMSNorm(num_features, eps, affine, shift, **options)
    if affine and shift:
        return ShiftedRMSNorm(num_features, eps, **options)
    return nn.RMSNorm(num_features, eps, elementwise_affine=affine, **options)


_LAYERS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def _is_instance_norm(module: nn.Module) -> bool:
    if not isinstance(module, _InstanceNorm):
        return False
    refuse_lazy(module)
    return True


@norm_kind("instance", matches=_is_instance_norm, options=_OPTIONS, channelwise=True)
def instance_norm(
    num_features: int, dimensions: int, affine: bool = True, **options: Any
) -> nn.Module:
    """Normalization of each channel of a sample over its positions.

    Reference: ulyanov2016.
    """
    if dimensions == 0:
        raise InputError(
            "instance normalization averages over the positions of a channel, but a vector has one "
            "value per channel; choose layer, rms, group or batch."
        )
    return _LAYERS[dimensions - 1](num_features, affine=affine, **options)


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
        return _scale_and_shift(torch.tanh(self.alpha * x), self.weight, self.bias, self.dimensions)

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
