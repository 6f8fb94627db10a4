"""How images lie in memory, and in which order of it convolutions are fast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["channels_last", "prefers_channels_last"]


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
