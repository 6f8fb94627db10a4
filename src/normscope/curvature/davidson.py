"""The largest eigenvalues of a symmetric operator by Davidson's method, with a model of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from normscope.curvature.basis import GrowingBasis
from normscope.curvature.mean_model import Correction, MeanModel
from normscope.curvature.ritz import RitzPairs, wanted_positions

__all__ = ["Davidson"]


class Davidson(GrowingBasis):
    """A growing orthonormal basis, each new direction chosen by a model of the operator.

    Lanczos adds what is new in the last product. A model that knows part of the spectrum makes
    more of a residual: it divides each part of it by the gap to that part's eigenvalue. The
    products are kept, so that residuals are exact whatever the directions are; with twice the
    vectors of Lanczos this is for spaces whose vectors are small.

    Args:
        product: the operator, on flat vectors.
        start: (size, block), linearly independent columns.
        basis_limit: how many vectors may be held, and as many products.
        generator: of the vectors drawn when the space searched turns out invariant.
        model: of the operator.
        which: which eigenvalues are wanted, as in `wanted_positions`.
    """

    def __init__(
        self,
        product: Callable[[Tensor], Tensor],
        start: Tensor,
        basis_limit: int,
        generator: torch.Generator,
        model: MeanModel,
        which: str,
    ) -> None:
        super().__init__(product, start, basis_limit, generator)
        self._images = torch.empty_like(self._basis)
        self._model = model
        self._which = which

    def step(self) -> None:
        """Multiply the next basis vector by the operator: one product."""
        if self.done == self.held:
            self._append(self._direction())
        row = self.done
        vector = self._basis[row]
        image = self._product(vector)
        self.products += 1
        coefficients = (self._basis[: self.held] @ image).double().cpu()
        expected = (self._images[:row] @ vector).double().cpu()
        self._see_asymmetry(coefficients[:row], expected)
        self._images[row] = image
        self._projected[: self.held, row] = coefficients
        self._projected[row, :row] = coefficients[:row]
        self.done += 1

    def ritz_pairs(self, which: str, count: int) -> RitzPairs:
        """The best approximations in the space searched; their errors are the model's.

        Args:
            which: as in `wanted_positions`.
            count: how many.

        Returns:
            The pairs; fewer if not so many vectors were multiplied yet.
        """
        values, vectors = self._eigen()
        chosen = wanted_positions(values, which, count)
        kept, coefficients = values[chosen], vectors[:, chosen]
        corrections = self._corrections(kept, coefficients)
        residuals = values.new_tensor([one.residual for one in corrections])
        errors = values.new_tensor([one.error for one in corrections])
        return RitzPairs(kept, coefficients, residuals, errors, float(values.abs().max()))

    def compress(self, which: str, keep: int) -> None:
        """Keep the best Ritz vectors and their products; forget the rest.

        Args:
            which: as in `wanted_positions`.
            keep: how many Ritz vectors, less than were multiplied.
        """
        assert self.done == self.held  # the start is far smaller than the limit
        values, vectors = self._eigen()
        chosen = wanted_positions(values, which, keep)
        kept, coefficients = len(chosen), vectors[:, chosen]
        rows, images = self.combination(coefficients).T, self._multiplied(coefficients).T
        self._basis[:kept], self._images[:kept] = rows, images
        self._projected.zero_()
        self._projected[:kept, :kept] = torch.diag(values[chosen])
        self.done = self.held = kept

    def _direction(self) -> Tensor:
        """Towards that one of the wanted eigenvectors that is known least."""
        values, vectors = self._eigen()
        chosen = wanted_positions(values, self._which, self.block)
        corrections = self._corrections(values[chosen], vectors[:, chosen])
        return max(corrections, key=lambda one: one.residual).direction

    def _corrections(self, values: Tensor, coefficients: Tensor) -> list[Correction]:
        """The model's, for each Ritz pair."""
        vectors = self.combination(coefficients).T.contiguous()
        images = self._multiplied(coefficients).T.contiguous()
        wanted = torch.stack([self._model.consensus.means(vector) for vector in vectors], dim=1)
        return [
            self._model.correction(value, vector, image, wanted)
            for value, vector, image in zip(values.tolist(), vectors, images, strict=True)
        ]

    def _multiplied(self, coefficients: Tensor) -> Tensor:
        """The operator times combinations of the vectors multiplied, one column each."""
        images = self._images[: self.done]
        return images.T @ coefficients.to(images)
