"""The statistics that a batch norm or l_p layer takes of one batch, in double precision."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normscope.errors import InputError, ShapeError
from normscope.layers.detect import is_lp_norm
from normscope.layers.lp_function import scale


class BatchStatistics(NamedTuple):
    """Statistics of one batch, per channel.

    Attributes:
        mean: the mean.
        spread: what the layer divides by in training: the 1/m variance, or the p-norm's scale.
        unbiased_spread: what enters the running statistics: m/(m-1) times the variance; the scale.
        samples: how many samples the batch has.
    """

    mean: Tensor
    spread: Tensor
    unbiased_spread: Tensor
    samples: int


def spread_name(layer: nn.Module) -> str:
    """Name of the buffer beside ``running_mean``: ``running_var`` or ``running_scale``.

    Args:
        layer: a batch norm or l_p layer.

    Returns:
        The buffer's name.
    """
    return "running_scale" if is_lp_norm(layer) else "running_var"


def batch_statistics(layer: Any, x: Tensor, name: str) -> BatchStatistics:
    """Statistics of a layer's input, as the layer takes them in training.

    Args:
        layer: a batch norm or l_p layer.
        x: its input, (batch, channels, *positions).
        name: the layer's name, for messages.

    Returns:
        The statistics in float64 (float32 on a device that has no float64).

    Raises:
        ShapeError: if the input does not have the layer's channels.
        InputError: if there is at most one value per channel.

    >>> batch_statistics(nn.BatchNorm1d(1), torch.tensor([[1.0], [3.0]]), "norm").unbiased_spread
    tensor([2.], dtype=torch.float64)
    """
    if x.dim() < 2 or x.shape[1] != layer.num_features:
        raise ShapeError(
            f"layer {name!r} expects (batch, {layer.num_features} channels, ...), "
            f"got {tuple(x.shape)}."
        )
    count = x.numel() // max(x.shape[1], 1)
    if count < 2:
        raise InputError(
            f"layer {name!r} needs more than one value per channel to have a variance, got input "
            f"of shape {tuple(x.shape)}; use larger batches or drop the last one."
        )
    wide = x.to(torch.float32 if x.device.type == "mps" else torch.float64)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean = wide.mean(axes)
    centred = wide - mean.reshape(-1, *[1] * (x.dim() - 2))
    if is_lp_norm(layer):
        size = scale(centred if layer.centred else wide, layer.p, layer.eps).flatten()
        return BatchStatistics(mean, size, size, x.shape[0])
    # Centred before squaring: no cancellation, whatever the mean.
    variance = centred.square().mean(axes)
    return BatchStatistics(mean, variance, variance * (count / (count - 1)), x.shape[0])
