"""Images of vectors under a linear map, remembered: those of their combinations come for free."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Recall"]

_MOST = 16  # vectors remembered
_LARGEST_IMAGE = 1 << 22  # bytes; larger ones would cost more memory than they save time
_ROUNDING = 64.0  # in units of the dtype's: what may be left of a vector outside those remembered


class Recall:
    """What a linear map made of some orthonormal vectors.

    >>> recall = Recall()
    >>> recall.add(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 3.0]))
    >>> recall.image(torch.tensor([0.5, 0.0]))
    tensor([1.0000, 1.5000])
    >>> recall.image(torch.tensor([0.5, 0.5])) is None
    True
    """

    def __init__(self) -> None:
        self._vectors: list[Tensor] = []
        self._images: list[Tensor] = []

    def add(self, vector: Tensor, image: Tensor | None) -> None:
        """Remember one more, if there is room.

        Args:
            vector: of length one, orthogonal to those before; copied.
            image: kept as it is; None if it is not known.
        """
        if image is None or image.numel() * image.element_size() > _LARGEST_IMAGE:
            return
        if len(self._vectors) < _MOST:
            self._vectors.append(vector.clone())
            self._images.append(image)

    def image(self, vector: Tensor) -> Tensor | None:
        """The image of a combination of the vectors; None if it is none."""
        if not self._vectors:
            return None
        basis = torch.stack(self._vectors)
        parts = basis @ vector
        outside = (vector - basis.T @ parts).norm()
        if not outside <= _ROUNDING * torch.finfo(vector.dtype).eps * vector.norm():
            return None
        return torch.stack(self._images, dim=1) @ parts.to(self._images[0])
