"""Extreme eigenvalues of a symmetric operator by block Lanczos with full reorthogonalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.curvature.basis import GrowingBasis
from normscope.curvature.ritz import RitzPairs, wanted_positions

__all__ = ["Lanczos"]

_KNOWN = 0.25  # residual of a Ritz value, over the value, below which it tells of an eigenvalue


class Lanczos(GrowingBasis):
    """A growing orthonormal basis in which a symmetric operator is nearly invariant.

    It starts from a block of vectors, as many as eigenvalues are wanted, so that eigenvalues of
    that multiplicity are found. What is new in a product joins the basis: the products themselves
    need not be kept. A thick restart keeps the vectors not yet multiplied, and with them all
    relations exact.

    Notation: A Q[:done]^T = Q^T H.
    """

    def step(self) -> None:
        """Multiply the next basis vector by the operator: one product."""
        if self.done == self.held:
            self._append_random()
        image = self._product(self._basis[self.done])
        self.products += 1
        before = float(image.norm())
        coefficients = self._orthogonalize(image)
        row, after = self.done, float(image.norm())
        self._see_asymmetry(coefficients[:row], self._projected[row, :row])
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

        An error is the square of the residual over the gap to the other eigenvalues where these
        are known, else twice the residual.

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
