"""Davidson's method: the largest eigenvalues of an operator, guided by a small model of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from normscope.curvature.lanczos import Basis, RitzPairs, value_errors, wanted_positions
from normscope.curvature.mean_model import ErrorEstimate, MeanModel
from normscope.curvature.precision import components, length

_SMALL_RESIDUAL = 0.02  # of a value, from which gaps between values found are trusted


class Davidson(Basis):
    """A growing orthonormal basis whose new directions are chosen by a model of the operator.

    Lanczos adds the new part of the last product. A model that knows part of the spectrum divides
    each component of a residual by the gap to its eigenvalue. The products are kept, so that
    residuals are exact for any directions; this doubles the memory of Lanczos and is meant for
    spaces whose vectors are small.

    Args:
        product: the operator, on flat vectors.
        start: (size, block), linearly independent columns.
        basis_limit: how many vectors may be held, and as many products.
        generator: of random vectors, drawn when the basis spans an invariant subspace.
        mean_model: of the operator.
        which: which eigenvalues are wanted, as in `wanted_positions`.
    """

    def __init__(
        self,
        product: Callable[[Tensor], Tensor],
        start: Tensor,
        basis_limit: int,
        generator: torch.Generator,
        mean_model: MeanModel,
        which: str,
    ) -> None:
        super().__init__(product, start, basis_limit, generator)
        self._images = torch.empty_like(self._basis)
        self._mean_model = mean_model
        self._which = which
        # coordinates of the basis and of the images in the model's frame
        shape = len(self._basis), len(mean_model.matrix)
        self._means, self._moved = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))

    def step(self) -> None:
        """Multiply the next basis vector by the operator: one product."""
        if self.done == self.held:
            self._append(self._direction())
        row = self.done
        vector = self._basis[row]
        image = self._product(vector)
        self.products += 1
        coefficients = components(self._basis[: self.held], image)
        self._images[row] = image
        self._means[row] = self._mean_model.frame.means(vector)
        self._moved[row] = self._mean_model.frame.means(image)
        self._projected[: self.held, row] = coefficients
        self._projected[row, :row] = coefficients[:row]
        self.done += 1

    def ritz_pairs(self, which: str, count: int) -> RitzPairs:
        """Return the best approximations in the basis, with the model's error estimates.

        Once a residual is small, the gap to the next value in the basis may give a smaller one.

        Args:
            which: as in `wanted_positions`.
            count: how many.

        Returns:
            The pairs; fewer if fewer vectors were multiplied.
        """
        values, coefficients, norm = self._best(which, count + 1)
        residuals = self._lengths(self._residuals(values, coefficients))
        by_gaps = torch.where(
            residuals <= _SMALL_RESIDUAL * values.abs(), value_errors(values, residuals), torch.inf
        )[:count]
        values, coefficients, residuals = values[:count], coefficients[:, :count], residuals[:count]
        estimates = self._estimates(values, coefficients, residuals)
        errors = values.new_tensor([estimate.error for estimate in estimates])
        return RitzPairs(values, coefficients, residuals, errors.minimum(by_gaps), norm)

    def compress(self, which: str, keep: int) -> None:
        """Keep the best Ritz vectors and their products; drop the rest.

        Args:
            which: as in `wanted_positions`.
            keep: how many Ritz vectors, less than were multiplied.
        """
        assert self.done == self.held  # the start is far smaller than the limit
        values, coefficients, _ = self._best(which, keep)
        kept = len(values)
        for rows in (self._basis, self._images, self._means, self._moved):
            rows[:kept] = coefficients.T.to(rows) @ rows[: self.done]
        self._projected.zero_()
        self._projected[:kept, :kept] = torch.diag(values)
        self.done = self.held = kept

    def _best(self, which: str, count: int) -> tuple[Tensor, Tensor, float]:
        """Return Ritz values and vectors in the basis, and the largest magnitude of all values."""
        values, vectors = self._eigen()
        chosen = wanted_positions(values, which, count)
        return values[chosen], vectors[:, chosen], float(values.abs().max())

    def _direction(self) -> Tensor:
        """Return the direction towards the wanted eigenvector with the largest residual."""
        values, coefficients, _ = self._best(self._which, self.block)
        residuals = self._residuals(values, coefficients)
        lengths = self._lengths(residuals)
        worst = int(lengths.argmax())
        weights = self._estimates(values, coefficients, lengths)[worst].weights
        residual = residuals[:, worst].contiguous()
        return residual.add_(self._mean_model.frame.vector(weights, residual))

    @staticmethod
    def _lengths(columns: Tensor) -> Tensor:
        return torch.tensor([length(column) for column in columns.T], dtype=torch.float64)

    def _residuals(self, values: Tensor, coefficients: Tensor) -> Tensor:
        """Return A x - theta x for each Ritz pair, one column each."""
        images = self._images[: self.done]
        return (images.T @ coefficients.to(images)).sub_(self.combination(coefficients * values))

    def _estimates(
        self, values: Tensor, coefficients: Tensor, lengths: Tensor
    ) -> list[ErrorEstimate]:
        """Return the model's estimate for each Ritz pair."""
        means = self._means[: self.done].T @ coefficients
        moved = self._moved[: self.done].T @ coefficients
        return [
            self._mean_model.estimate(float(value), float(length), x, image, means)
            for value, length, x, image in zip(values, lengths, means.T, moved.T, strict=True)
        ]
