"""The curvature matrix of one batch, as everything that searches in it sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

__all__ = ["BatchProduct"]


class BatchProduct(ABC):
    """The curvature matrix of one batch, known by its products with flat vectors."""

    @abstractmethod
    def times(self, vector: Tensor) -> Tensor:
        """The matrix times a flat vector."""
