"""The windows that a filter sees of its images, as rows of one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from normscope.curvature.chain_links import channels_last

__all__ = ["Windows"]

# Where the gradient of the filters is faster as one product of matrices than by oneDNN's kernel:
# few windows overlap, so that they are hardly larger than the images, and each has many entries.
_MOST_COPIES = 3
_SMALLEST_WINDOW = 128


@dataclass(frozen=True)
class Windows:
    """How a filter moves over images whose channels are neighbours in memory.

    Args:
        size: height and width of the filter.
        positions: of the filter, down and across.
        stride: between two positions.
        padding: zeros around the images.
        dilation: distance of the filter's taps.
    """

    size: tuple[int, int]
    positions: tuple[int, int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    @classmethod
    def of(
        cls,
        images: Tensor,
        weight: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Windows | None:
        """The windows of a convolution, if they pay; None: leave it to the library."""
        if groups != 1 or not channels_last(images):
            return None
        height, width = weight.shape[2:]
        down, across = (
            (side + 2 * pad - step * (taps - 1) - 1) // hop + 1
            for side, pad, step, taps, hop in zip(
                images.shape[2:], padding, dilation, (height, width), stride, strict=True
            )
        )
        entries = weight[0].numel()
        copies = len(images) * down * across * entries / images.numel()
        if copies > _MOST_COPIES or entries < _SMALLEST_WINDOW:
            return None
        return cls((height, width), (down, across), stride, padding, dilation)

    def on(self, images: Tensor) -> Tensor:
        """One row for each position of the filter on each image, its channels innermost."""
        (down, across), (height, width) = self.positions, self.size
        if any(self.padding):
            rows, columns = self.padding
            images = functional.pad(images, (columns, columns, rows, rows))
        rows_last = images.permute(0, 2, 3, 1).contiguous()
        of_image, of_row, of_column, of_channel = rows_last.stride()
        shape = (len(images), down, across, height, width, images.shape[1])
        strides = (
            *(of_image, of_row * self.stride[0], of_column * self.stride[1]),
            *(of_row * self.dilation[0], of_column * self.dilation[1], of_channel),
        )
        seen = rows_last.as_strided(shape, strides)
        return seen.reshape(len(images) * down * across, height * width * images.shape[1])

    def gradient(self, delta: Tensor, windows: Tensor) -> Tensor:
        """That of the filters, (fan_out, channels, height, width), for the output's cotangent."""
        rows = delta.permute(0, 2, 3, 1).reshape(len(windows), -1)
        product = torch.mm(rows.T, windows)
        return product.view(len(product), *self.size, -1).permute(0, 3, 1, 2)
