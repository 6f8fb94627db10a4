"""The arithmetic of folding: an affine map per channel, taken into a linear or convolution layer.

Notation: ``groups`` g, output channels o, input channels i, kernel positions k; a weight is seen
as (g, o/g, i/g, k) whatever the layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d | Transposed
Layer = nn.Linear | Convolution


def out_channels(layer: Layer) -> int:
    """How many channels the layer gives."""
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def in_channels(layer: Layer) -> int:
    """How many channels the layer takes."""
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels


def fold_output(layer: Layer, scale: Tensor, shift: Tensor) -> None:
    r"""Make the layer give ``scale * output + shift``, in place.

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
    r"""Make the layer take ``scale * input + shift`` for its input, in place.

    .. math:: W' = W a, \qquad c' = c + W b

    Right for a convolution only if no zeros are padded in, or ``shift`` is zero.
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
