"""How images lie in memory, and in which order of it convolutions are fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["channels_last", "exact_statistics", "prefers_channels_last", "takes_either_order"]

_FEW = 4  # samples on which the two orders are compared
_TOLERANCE = 1e-4  # of the largest output; rounding is amplified by some layers


def channels_last(tensor: Tensor) -> bool:
    """Whether the channels of a batch of images are neighbours in memory.

    >>> images = torch.zeros(2, 3, 4, 4)
    >>> channels_last(images), channels_last(images.contiguous(memory_format=torch.channels_last))
    (False, True)
    """
    inner = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return inner and not tensor.is_contiguous()


def prefers_channels_last(inputs: Tensor) -> bool:
    """Whether convolutions of such images are faster with channels as neighbours: oneDNN's are.

    Args:
        inputs: of a convolution, or of a network that begins with one.

    Returns:
        True for single-precision images on a CPU with oneDNN.
    """
    library: Any = torch.backends.mkldnn
    images = inputs.dim() == 4 and inputs.dtype == torch.float32
    return images and inputs.device.type == "cpu" and bool(library.is_available())


def exact_statistics(images: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1/s of each channel, s^2 the variance with 1/m plus eps, of images in any order.

    PyTorch adds up images whose channels are neighbours one number after the other, which costs
    two digits, and others in a cascade: it is shown a copy in that order.

    Args:
        images: (batch, channels, *positions).
        eps: added to the variance.

    Returns:
        Two vectors.

    >>> exact_statistics(torch.tensor([[0.0], [4.0]]), 0.0)
    (tensor([2.]), tensor([0.5000]))
    """
    copied = images.contiguous()
    _, mean, inverse = torch.native_batch_norm(copied, None, None, None, None, True, 0.0, eps)
    return mean, inverse


def takes_either_order(outputs_of: Callable[[Tensor], list[Tensor]], inputs: Tensor) -> bool:
    """Whether a network gives the same outputs in either order of memory, on a few samples.

    Some look at their memory: ``view`` refuses it, ``as_strided`` reads other values, and dropout
    draws in the order of memory.

    Args:
        outputs_of: from images to what is compared, the same function at each call.
        inputs: the images.

    Returns:
        False also if it refuses one of them, for whatever reason: the reason will show again.

    >>> images = torch.arange(16.0).view(2, 2, 2, 2)
    >>> takes_either_order(lambda x: [x.flatten(1)], images)
    True
    >>> takes_either_order(lambda x: [x.as_strided((2, 8), (8, 1))], images)
    False
    """
    few = inputs[:_FEW]
    orders = torch.contiguous_format, torch.channels_last
    try:
        given, rearranged = (outputs_of(few.contiguous(memory_format=order)) for order in orders)
        return all(_are_close(*pair) for pair in zip(given, rearranged, strict=True))
    except Exception:  # a model may raise anything
        return False


def _are_close(one: Tensor, other: Tensor) -> bool:
    bound = _TOLERANCE * one.abs().max()
    return one.shape == other.shape and bool(((one - other).abs() <= bound).all())
