"""Fold an affine map per channel into the weights of a linear or convolution layer.

Notation: groups g, output channels o, input channels i, kernel positions k; the weight of every
layer is viewed as (g, o/g, i/g, k).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normscope.layers.kinds import is_lp_norm
from normscope.layers.surgery.plain_layers import (
    Convolution,
    Layer,
    Transposed,
    in_channels,
    out_channels,
    spatial_dimensions,
)


def fold_output(layer: Layer, scale: Tensor, shift: Tensor) -> None:
    r"""Change the layer in place to return ``scale * output + shift``.

    .. math:: W' = a W, \qquad c' = a c + b

    Notation: W = weight, c = bias, a = scale, b = shift.

    Args:
        layer: the layer before the affine map.
        scale: a factor per output channel, float64 on the CPU.
        shift: a summand per output channel.

    >>> layer = nn.Linear(1, 1)
    >>> before = layer(torch.ones(1, 1))
    >>> fold_output(layer, torch.tensor([2.0]), torch.tensor([5.0]))
    >>> torch.allclose(layer(torch.ones(1, 1)), 2 * before + 5)
    True
    """
    weight = _grouped_weight(layer)
    groups, outputs = weight.shape[:2]
    _assign_weight(layer, weight * scale.reshape(groups, outputs, 1, 1))
    _assign_bias(layer, scale * _bias(layer) + shift)


def fold_input(layer: Layer, scale: Tensor, shift: Tensor) -> None:
    r"""Change the layer in place to apply to ``scale * input + shift``.

    .. math:: W' = W a, \qquad c' = c + W b

    Correct for a convolution only if it does not pad with zeros, or ``shift`` is zero.
    Notation: W = weight, c = bias, a = scale, b = shift.

    Args:
        layer: the layer after the affine map.
        scale: a factor per input channel, float64 on the CPU.
        shift: a summand per input channel.

    >>> layer = nn.Linear(1, 1)
    >>> before = layer(torch.full((1, 1), 7.0))
    >>> fold_input(layer, torch.tensor([2.0]), torch.tensor([5.0]))
    >>> torch.allclose(layer(torch.ones(1, 1)), before)
    True
    """
    weight = _grouped_weight(layer)
    shape = (weight.shape[0], 1, weight.shape[2], 1)
    bias = _bias(layer) + (weight * shift.reshape(shape)).sum((2, 3)).flatten()
    _assign_weight(layer, weight * scale.reshape(shape))
    _assign_bias(layer, bias)


def _grouped_weight(layer: Layer) -> Tensor:
    weight = layer.weight.detach().to("cpu", torch.float64)
    if isinstance(layer, nn.Linear):
        return weight[None, :, :, None]
    grouped = weight.reshape(layer.groups, weight.shape[0] // layer.groups, weight.shape[1], -1)
    return grouped.transpose(1, 2) if isinstance(layer, Transposed) else grouped


def _assign_weight(layer: Layer, grouped: Tensor) -> None:
    if isinstance(layer, Transposed):
        grouped = grouped.transpose(1, 2)
    with torch.no_grad():
        layer.weight.copy_(grouped.reshape(layer.weight.shape))


def _bias(layer: Layer) -> Tensor:
    if layer.bias is None:
        return torch.zeros(out_channels(layer), dtype=torch.float64)
    return layer.bias.detach().to("cpu", torch.float64)


def _assign_bias(layer: Layer, bias: Tensor) -> None:
    if layer.bias is None:
        layer.bias = nn.Parameter(bias.to(layer.weight), layer.weight.requires_grad)
    else:
        with torch.no_grad():
            layer.bias.copy_(bias)


def misfit_before(norm: Any, layer: Layer) -> str | None:
    """Return the reason why a norm layer cannot be folded into the layer before it; None if it can.

    Args:
        norm: the norm layer, plain in eval mode.
        layer: the layer whose output it takes.

    Returns:
        The reason, or None.
    """
    if out_channels(layer) != norm.num_features:
        return f"{type(layer).__name__} before it gives {out_channels(layer)} channels"
    return _other_dimensions(norm, layer)


def misfit_after(norm: Any, layer: Layer, flattened: bool, shift: Tensor) -> str | None:
    """Return the reason why a norm layer cannot be folded into the layer after it; None if it can.

    Args:
        norm: the norm layer, plain in eval mode.
        layer: the layer that takes its output.
        flattened: whether the output is flattened in between.
        shift: of the norm layer's affine map, per channel.

    Returns:
        The reason, or None.
    """
    kind = type(layer).__name__
    if flattened:
        fits = isinstance(layer, nn.Linear) and layer.in_features % norm.num_features == 0
        return None if fits else f"{kind} after it does not take its channels flattened"
    if in_channels(layer) != norm.num_features:
        return f"{kind} after it takes {in_channels(layer)} channels"
    if isinstance(layer, Convolution) and bool((shift != 0).any()) and _sees_zeros(layer):
        return f"{kind} after it pads with zeros, which the shift would change"
    return _other_dimensions(norm, layer)


def _other_dimensions(norm: nn.Module, layer: Layer) -> str | None:
    dimensions = spatial_dimensions(norm)
    expected = 1 if isinstance(layer, nn.Linear) else spatial_dimensions(layer)
    if dimensions in (None, expected):
        return None
    return f"it has {dimensions} spatial dimensions, {type(layer).__name__} beside it has not"


def _sees_zeros(layer: Convolution) -> bool:
    """Return whether some outputs lack contributions of the input, as at zero padding."""
    if isinstance(layer, Transposed):
        return True
    if layer.padding_mode != "zeros":
        return False  # pads with values of the input, which are shifted too
    if layer.padding == "same":
        return any(size > 1 for size in layer.kernel_size)
    return layer.padding != "valid" and any(int(size) > 0 for size in layer.padding)


def affine_map(layer: Any) -> tuple[Tensor, Tensor]:
    r"""Return the scale and shift per channel of a batch norm or l_p layer in eval mode.

    .. math:: y = a x + b, \qquad a = \gamma / \sqrt{Var[x] + \epsilon}, \qquad b = \beta - a E[x]

    An l_p layer has :math:`a = \gamma / s` with s its running scale. Reference: ioffe2015,
    Algorithm 2. Notation: a = scale, b = shift.

    Args:
        layer: a layer that keeps running statistics.

    Returns:
        Scale and shift, float64 on the CPU, of shape (channels,).

    >>> scale, shift = affine_map(nn.BatchNorm1d(1, eps=3.0))
    >>> scale.item(), shift.item()
    (0.5, 0.0)
    """
    mean = layer.running_mean.detach().to("cpu", torch.float64)
    if is_lp_norm(layer):
        scale = layer.running_scale.detach().to("cpu", torch.float64).reciprocal()
    else:
        scale = (layer.running_var.detach().to("cpu", torch.float64) + layer.eps).rsqrt()
    if layer.weight is not None:
        scale = scale * layer.weight.detach().to("cpu", torch.float64)
    shift = -scale * mean
    if layer.bias is not None:
        shift = shift + layer.bias.detach().to("cpu", torch.float64)
    return scale, shift
