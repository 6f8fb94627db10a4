"""How images lie in memory, and in which order of it convolutions are fast."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["channels_last", "exact_statistics"]


def channels_last(tensor: Tensor) -> bool:
    """Whether the channels of a batch of images are neighbours in memory.

    >>> images = torch.zeros(2, 3, 4, 4)
    >>> channels_last(images), channels_last(images.contiguous(memory_format=torch.channels_last))
    (False, True)
    """
    inner = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return inner and not tensor.is_contiguous()


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
