"""Extreme eigenvalues of a symmetric operator by block Lanczos with full reorthogonalization."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.curvature.precision import components, length
from normscope.registry import unknown_name

WHICH = ("largest", "smallest", "both", "magnitude")

# relative residual below which the gap to a Ritz value is trusted
_TRUSTED_RESIDUAL = 0.25
# products for each wanted value, over which its gain is an estimate of what is left to gain
_GAIN_PRODUCTS = 3


@dataclass(frozen=True)
class RitzPairs:
    """Approximate eigenpairs.

    Args:
        values: float64, in the requested order.
        coefficients: the vectors in the basis, one column each.
        residuals: the norm of A v - theta v for each.
        errors: estimated distance of each value to its eigenvalue.
        norm: the largest magnitude of a Ritz value, a lower bound of the operator's norm.
    """

    values: Tensor
    coefficients: Tensor
    residuals: Tensor
    errors: Tensor
    norm: float


def wanted_positions(values: Tensor, which: str, count: int) -> Tensor:
    """Return the positions of the wanted eigenvalues among ascending ones, the most wanted first.

    Args:
        values: ascending.
        which: "largest", "smallest", "both" (``count`` of either end) or "magnitude".
        count: how many.

    Returns:
        Their positions; fewer than ``count`` if there are no more.

    >>> wanted_positions(torch.tensor([-3.0, 0.0, 2.0]), "magnitude", 2)
    tensor([0, 2])
    """
    if which not in WHICH:
        raise unknown_name("choice of eigenvalues", which, WHICH)
    positions = torch.arange(len(values), device=values.device)
    largest, smallest = positions.flip(0)[:count], positions[:count]
    if which == "both":
        return torch.cat([largest, smallest[: len(values) - len(largest)]])
    if which == "magnitude":
        return values.abs().argsort(descending=True)[:count]
    return largest if which == "largest" else smallest


class Basis(ABC):
    """A growing orthonormal basis, and a symmetric operator projected on it.

    Each `step` multiplies the next basis vector by the operator; subclasses choose the directions
    that join the basis.

    Notation: Q = basis rows, done = rows multiplied, held = rows in memory, H = Q A Q^T.

    Args:
        product: the operator, on flat vectors.
        start: (size, block), linearly independent columns.
        basis_limit: how many vectors may be held.
        generator: of random vectors, drawn when the basis spans an invariant subspace.
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
        # rows that are never written cost no memory on a CPU
        self._basis = start.new_empty((self.limit + 1, self.size))
        self._projected = torch.zeros(self.limit + 1, self.limit + 1, dtype=torch.float64)
        self.held = self.done = self.products = 0
        self._history: list[Tensor] = []  # Ritz values after each product, if they are kept
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
        """Return the best approximations in the span of the basis.

        Args:
            which: as in `wanted_positions`.
            count: how many.

        Returns:
            The pairs; fewer if fewer vectors were multiplied.
        """

    @abstractmethod
    def compress(self, which: str, keep: int) -> None:
        """Keep the best Ritz vectors and drop the rest (a thick restart).

        Args:
            which: as in `wanted_positions`.
            keep: how many Ritz vectors, less than were multiplied.
        """

    def vectors(self, pairs: RitzPairs) -> Tensor:
        """Return the approximate eigenvectors, one column each."""
        return self.combination(pairs.coefficients)

    def combination(self, coefficients: Tensor) -> Tensor:
        """Return linear combinations of the multiplied basis vectors, one column each."""
        basis = self._basis[: self.done]
        return basis.T @ coefficients.to(basis)

    def _eigen(self) -> tuple[Tensor, Tensor]:
        square = self._projected[: self.done, : self.done]
        values, vectors = torch.linalg.eigh((square + square.T) / 2)
        return values, vectors

    def _orthogonalize(self, vector: Tensor) -> Tensor:
        """Remove, in place, the components along the basis; return them in float64."""
        basis = self._basis[: self.held]
        total = torch.zeros(self.held, dtype=torch.float64)
        for _ in range(3):
            before = length(vector)
            parts = components(basis, vector)
            vector.addmv_(basis.T, parts.to(vector), alpha=-1)
            total += parts
            if length(vector) > 0.5 * before:  # little was removed, so no digits were cancelled
                break
        return total

    def _append(self, vector: Tensor) -> None:
        """Add a direction; a random one if it lies in the span already."""
        before = length(vector)
        self._orthogonalize(vector)
        if not length(vector) > 1e-6 * before:
            self._append_random()
            return
        self._basis[self.held] = vector / length(vector)
        self.held += 1

    def _append_random(self) -> None:
        drawn = torch.randn(self.size, generator=self._generator, dtype=torch.float64)
        self._append(drawn.to(self._basis))


class Lanczos(Basis):
    """Block Lanczos: the new direction in each product joins the basis.

    It starts from as many vectors as eigenvalues are wanted, so that eigenvalues of that
    multiplicity are found. The products themselves need not be kept. A thick restart keeps the
    vectors not yet multiplied, and with them all relations exact.

    Notation: A Q[:done]^T = Q^T H.
    """

    def step(self) -> None:
        """Multiply the next basis vector by the operator: one product."""
        if self.done == self.held:
            self._append_random()
        image = self._product(self._basis[self.done])
        self.products += 1
        before = length(image)
        coefficients = self._orthogonalize(image)
        row, after = self.done, length(image)
        self._projected[: self.held, row] = coefficients
        self._projected[row, : self.done] = self._projected[: self.done, row]
        self.done += 1
        noise = 8 * torch.finfo(image.dtype).eps * before
        if after > noise and self.held < self.size:
            self._projected[self.held, row] = after
            self._basis[self.held] = image.div_(after)
            self.held += 1
        self._history.append(self._eigen()[0])

    def ritz_pairs(self, which: str, count: int) -> RitzPairs:
        """Return the best approximations in the span of the basis.

        The error is the square of the residual over the gap to the other eigenvalues where the gap
        is known, else twice the residual. Close neighbours become known late. Until then, what the
        last products added to the value is an estimate of what is left, unless the square of the
        residual over the gap to the other values found is larger.

        Args:
            which: as in `wanted_positions`.
            count: how many.

        Returns:
            The pairs; fewer if fewer vectors were multiplied.
        """
        values, vectors = self._eigen()
        residuals = (self._projected[self.done : self.held, : self.done] @ vectors).norm(dim=0)
        chosen = wanted_positions(values, which, count)
        settled = (residuals**2 / ritz_gaps(values))[chosen].maximum(self._gains(which, count))
        errors = value_errors(values, residuals)[chosen].minimum(settled)
        norm = float(values.abs().max())
        return RitzPairs(values[chosen], vectors[:, chosen], residuals[chosen], errors, norm)

    def _gains(self, which: str, count: int) -> Tensor:
        """Return what the last products added to each wanted value; infinite if not known."""
        now, *before = reversed(self._history[-1 - _GAIN_PRODUCTS * self.block :])
        values = now[wanted_positions(now, which, count)]
        if len(before) < _GAIN_PRODUCTS * self.block:
            return torch.full_like(values, torch.inf)
        earlier = before[-1][wanted_positions(before[-1], which, count)]
        if len(earlier) < len(values):
            return torch.full_like(values, torch.inf)
        return (values - earlier).abs()

    def compress(self, which: str, keep: int) -> None:
        """Keep the best Ritz vectors and the vectors not yet multiplied; drop the rest.

        Args:
            which: as in `wanted_positions`.
            keep: how many Ritz vectors, less than were multiplied.
        """
        pairs = self.ritz_pairs(which, keep)
        kept, waiting = len(pairs.values), self.held - self.done
        outside = self._projected[self.done : self.held, : self.done] @ pairs.coefficients
        self._basis[:kept] = self.vectors(pairs).T
        self._basis[kept : kept + waiting] = self._basis[self.done : self.held].clone()
        self._projected.zero_()
        self._projected[:kept, :kept] = torch.diag(pairs.values)
        self._projected[kept : kept + waiting, :kept] = outside
        self.done, self.held = kept, kept + waiting


def ritz_gaps(values: Tensor) -> Tensor:
    """Return the distance of each value to the nearest other one; infinite for a single value.

    >>> ritz_gaps(torch.tensor([0.0, 1.0, 4.0]))
    tensor([1., 1., 3.])
    """
    distances = (values.unsqueeze(1) - values).abs()
    return distances.fill_diagonal_(torch.inf).min(dim=1).values


def value_errors(values: Tensor, residuals: Tensor) -> Tensor:
    """Return the estimated distance of each Ritz value to its eigenvalue.

    The square of the residual over the gap to the other eigenvalues bounds it. The gap is known
    from the other Ritz values only up to their residuals, which are therefore subtracted. It is not
    trusted if the nearest Ritz value has a large residual: one of many close eigenvalues (a wide
    net has one for each output) looks isolated until the next is found. The residual alone shows
    that some eigenvalue is near; among close ones the value can be short by a small multiple of it.
    """
    distances = (values.unsqueeze(1) - values).abs() - residuals
    distances.fill_diagonal_(torch.inf)
    gaps, nearest = distances.min(dim=1)
    known = residuals[nearest] <= _TRUSTED_RESIDUAL * values[nearest].abs()
    known &= torch.isfinite(gaps) & (gaps > 0)
    return torch.where(known, torch.minimum(residuals, residuals**2 / gaps), 2 * residuals)
