"""A growing orthonormal basis, and a symmetric operator projected on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from normscope.curvature.ritz import RitzPairs

__all__ = ["GrowingBasis"]


class GrowingBasis(ABC):
    """Orthonormal vectors whose span comes to hold the extreme eigenvectors of an operator.

    One `step` multiplies the next basis vector by the operator; a subclass says which direction
    joins the basis then.

    Notation: Q = basis rows, done = rows multiplied, held = rows there are, H = Q A Q^T.

    Args:
        product: the operator, on flat vectors.
        start: (size, block), linearly independent columns.
        basis_limit: how many vectors may be held.
        generator: of the vectors drawn when the space searched turns out invariant.
    """

    def __init__(
        self,
        product: Callable[[Tensor], Tensor],
        start: Tensor,
        basis_limit: int,
        generator: torch.Generator,
    ) -> None:
        self._product = product
        self._generator = generator
        self.size, self.block = start.shape
        self.limit = min(basis_limit, self.size)
        # untouched pages of it cost nothing on a CPU
        self._basis = start.new_empty((self.limit + 1, self.size))
        self._projected = torch.zeros(self.limit + 1, self.limit + 1, dtype=torch.float64)
        self.held = 0
        self.done = 0
        self.products = 0
        self.asymmetry = 0.0
        for column in range(self.block):
            self._append(start[:, column].clone())

    @property
    def exhausted(self) -> bool:
        """Whether every basis vector is multiplied and no direction is left."""
        return self.done == self.held == self.size

    @property
    def full(self) -> bool:
        """Whether another step needs `compress` first."""
        return self.held > self.limit - 1 and self.limit < self.size and not self.done < 2

    @abstractmethod
    def step(self) -> None:
        """Multiply the next basis vector by the operator: one product."""

    @abstractmethod
    def ritz_pairs(self, which: str, count: int) -> RitzPairs:
        """The best approximations in the space searched.

        Args:
            which: as in `wanted_positions`.
            count: how many.

        Returns:
            The pairs; fewer if not so many vectors were multiplied yet.
        """

    @abstractmethod
    def compress(self, which: str, keep: int) -> None:
        """Keep the best Ritz vectors; forget the rest (a thick restart).

        Args:
            which: as in `wanted_positions`.
            keep: how many Ritz vectors, less than were multiplied.
        """

    def vectors(self, pairs: RitzPairs) -> Tensor:
        """The approximate eigenvectors, one column each."""
        return self.combination(pairs.coefficients)

    def combination(self, coefficients: Tensor) -> Tensor:
        """Combinations of the vectors multiplied, one column each."""
        basis = self._basis[: self.done]
        return basis.T @ coefficients.to(basis)

    def _eigen(self) -> tuple[Tensor, Tensor]:
        square = self._projected[: self.done, : self.done]
        values, vectors = torch.linalg.eigh((square + square.T) / 2)
        return values, vectors

    def _see_asymmetry(self, coefficients: Tensor, expected: Tensor) -> None:
        """Compare <q_i, A q_row>, just found, with <q_row, A q_i>, known from before."""
        if len(expected):
            difference = float((coefficients - expected).abs().max())
            self.asymmetry = max(self.asymmetry, difference)

    def _orthogonalize(self, vector: Tensor) -> Tensor:
        """Take out, in place, the parts along the basis; return them, in float64."""
        basis = self._basis[: self.held]
        total = torch.zeros(self.held, dtype=torch.float64)
        for _ in range(3):
            before = vector.norm()
            parts = basis @ vector
            vector.addmv_(basis.T, parts, alpha=-1)
            total += parts.double().cpu()
            if vector.norm() > 0.5 * before:  # little was taken away: nothing was cancelled
                break
        return total

    def _append(self, vector: Tensor) -> None:
        """Add one more direction; if it lies in the basis already, a random one."""
        before = vector.norm()
        self._orthogonalize(vector)
        if not vector.norm() > 1e-6 * before:
            self._append_random()
            return
        self._basis[self.held] = vector / vector.norm()
        self.held += 1

    def _append_random(self) -> None:
        drawn = torch.randn(self.size, generator=self._generator, dtype=torch.float64)
        self._append(drawn.to(self._basis))
