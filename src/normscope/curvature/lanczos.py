"""Extreme eigenvalues of a symmetric operator by block Lanczos with full reorthogonalisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.registry import unknown_name

__all__ = ["WHICH", "Lanczos", "RitzPairs", "wanted_positions"]

WHICH = ("largest", "smallest", "both", "magnitude")
_KNOWN = 0.25  # residual of a Ritz value, over the value, below which it tells of an eigenvalue


@dataclass(frozen=True)
class RitzPairs:
    """Approximate eigenpairs in the space searched so far.

    Args:
        values: float64, in the order asked for.
        coefficients: the vectors in the basis, one column each.
        residuals: the norm of A v - theta v for each.
        errors: how far each value is from its eigenvalue, estimated: where the other eigenvalues
            are known to be a gap away, the square of the residual over the gap; else twice the
            residual.
        norm: the largest magnitude of an eigenvalue seen, a lower bound of the operator's norm.
    """

    values: Tensor
    coefficients: Tensor
    residuals: Tensor
    errors: Tensor
    norm: float


def wanted_positions(values: Tensor, which: str, count: int) -> Tensor:
    """Where the wanted eigenvalues are among ascending ones, the most wanted first.

    Args:
        values: ascending.
        which: "largest", "smallest", "both" (``count`` of either) or "magnitude".
        count: how many.

    Returns:
        Their positions; fewer than ``count`` if there are no more.

    >>> wanted_positions(torch.tensor([-3.0, 0.0, 2.0]), "magnitude", 2)
    tensor([0, 2])
    """
    if which not in WHICH:
        raise unknown_name("choice of eigenvalues", which, WHICH)
    places = torch.arange(len(values), device=values.device)
    largest, smallest = places.flip(0)[:count], places[:count]
    if which == "both":
        return torch.cat([largest, smallest[: len(values) - len(largest)]])
    if which == "magnitude":
        return values.abs().argsort(descending=True)[:count]
    return largest if which == "largest" else smallest


class Lanczos:
    """A growing orthonormal basis in which a symmetric operator is nearly invariant.

    It starts from a block of vectors, as many as eigenvalues are wanted, so that eigenvalues of
    that multiplicity are found. One `step` multiplies the next basis vector; what is new in the
    product joins the basis. Before the basis outgrows its limit it is compressed to its best Ritz
    vectors and those not yet multiplied (a thick restart), which keeps all relations exact.

    Notation: Q = basis rows, done = rows multiplied, A Q[:done]^T = Q^T H.

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

    def step(self) -> None:
        """Multiply the next basis vector by the operator: one product."""
        if self.done == self.held:
            self._append_random()
        image = self._product(self._basis[self.done])
        self.products += 1
        before = float(image.norm())
        coefficients = self._orthogonalize(image)
        row, after = self.done, float(image.norm())
        # <q_i, A q_row>, just found, against <q_row, A q_i>, found when q_i was multiplied
        difference = coefficients[:row] - self._projected[row, :row]
        self.asymmetry = max(self.asymmetry, float(difference.abs().max()) if row else 0.0)
        self._projected[: self.held, row] = coefficients
        self._projected[row, : self.done] = self._projected[: self.done, row]
        self.done += 1
        noise = 8 * torch.finfo(image.dtype).eps * before
        if after > noise and self.held < self.size:
            self._projected[self.held, row] = after
            self._basis[self.held] = image.div_(after)
            self.held += 1

    def ritz_pairs(self, which: str, count: int) -> RitzPairs:
        """The best approximations in the space searched.

        Args:
            which: as in `wanted_positions`.
            count: how many.

        Returns:
            The pairs; fewer if not so many vectors were multiplied yet.
        """
        values, vectors = self._eigen()
        residuals = (self._projected[self.done : self.held, : self.done] @ vectors).norm(dim=0)
        errors = _value_errors(values, residuals)
        chosen = wanted_positions(values, which, count)
        norm = float(values.abs().max())
        return RitzPairs(
            values[chosen], vectors[:, chosen], residuals[chosen], errors[chosen], norm
        )

    def vectors(self, pairs: RitzPairs) -> Tensor:
        """The approximate eigenvectors, one column each."""
        return self.combination(pairs.coefficients)

    def combination(self, coefficients: Tensor) -> Tensor:
        """Combinations of the vectors multiplied, one column each."""
        basis = self._basis[: self.done]
        return basis.T @ coefficients.to(basis)

    def compress(self, which: str, keep: int) -> None:
        """Keep the best Ritz vectors and the vectors not yet multiplied; forget the rest.

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

    @property
    def full(self) -> bool:
        """Whether another step needs `compress` first."""
        return self.held > self.limit - 1 and self.limit < self.size and not self.done < 2

    def _eigen(self) -> tuple[Tensor, Tensor]:
        square = self._projected[: self.done, : self.done]
        values, vectors = torch.linalg.eigh((square + square.T) / 2)
        return values, vectors

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


def _value_errors(values: Tensor, residuals: Tensor) -> Tensor:
    """Estimated distance of each Ritz value to the eigenvalue it stands for.

    The square of the residual over the gap to the other eigenvalues bounds it. The gap is known
    from the other Ritz values only up to their own residuals, which are therefore taken off, and
    not at all if the nearest one is itself hardly known: one of many eigenvalues close together
    (a wide net has one for each output) looks isolated until the next of them is found. A residual
    alone shows that some eigenvalue is near; among close ones the value can be short by a small
    multiple of it.
    """
    distances = (values.unsqueeze(1) - values).abs() - residuals
    distances.fill_diagonal_(torch.inf)
    gaps, nearest = distances.min(dim=1)
    known = residuals[nearest] <= _KNOWN * values[nearest].abs()
    known &= torch.isfinite(gaps) & (gaps > 0)
    return torch.where(known, torch.minimum(residuals, residuals**2 / gaps), 2 * residuals)
