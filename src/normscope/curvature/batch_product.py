"""The curvature matrix of one batch, as everything that searches in it sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

__all__ = ["BatchProduct"]


class BatchProduct(ABC):
    """The curvature matrix of one batch, known by its products with flat vectors."""

    @abstractmethod
    def times(self, vector: Tensor) -> Tensor:
        """The matrix times a flat vector."""

    def times_block(self, matrix: Tensor) -> Tensor:
        """The matrix times several flat vectors, one column each; may be overridden by one pass."""
        block = torch.empty_like(matrix)
        for column in range(matrix.shape[1]):
            block[:, column] = self.times(matrix[:, column].contiguous())
        return block
