"""Products with a symmetric matrix, of which none is taken twice."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from normscope.theorems.layer_case import ROUNDING

Multiply = Callable[[list[int], Tensor], Tensor]
"""Takes the numbers of some units and a vector for each, (units, batch), to the products."""


class Products:
    """Products with the Hessian by a layer's outputs, or with its diagonal blocks.

    What lies in the span of earlier vectors follows by linearity, in float64. So the parts of a
    statement share their products, and both sides of an identity see the same matrix even if a
    product has few digits.

    Args:
        multiply: computes products.
        coupled: whether the units have one matrix, instead of a block each.

    Examples:
        >>> asked = []
        >>> def twice(units, vectors):
        ...     asked.append(units)
        ...     return 2 * vectors
        >>> times = Products(twice, coupled=False)
        >>> vectors = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
        >>> torch.allclose(times(vectors), 2 * vectors), asked
        (True, [[0], [1]])
        >>> torch.allclose(times(-3 * vectors), -6 * vectors), len(asked)
        (True, 2)
    """

    def __init__(self, multiply: Multiply, coupled: bool) -> None:
        self._multiply, self._coupled = multiply, coupled
        self._known: dict[int, _Span] = {}

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the products with the vectors, (units, batch)."""
        if self._coupled:
            every = list(range(len(vectors)))

            def multiply(flat: Tensor) -> Tensor:
                return self._multiply(every, flat.view_as(vectors)).reshape(-1)

            return self._span(0).times(vectors.reshape(-1), multiply).view_as(vectors)
        products = [
            self._span(unit).times(row, self._block(unit)) for unit, row in enumerate(vectors)
        ]
        return torch.stack(products)

    def _span(self, unit: int) -> _Span:
        return self._known.setdefault(unit, _Span())

    def _block(self, unit: int) -> Callable[[Tensor], Tensor]:
        return lambda row: self._multiply([unit], row.unsqueeze(0))[0]


class _Span:
    """Orthonormal vectors with their products."""

    def __init__(self) -> None:
        self._basis: list[Tensor] = []
        self._images: list[Tensor] = []

    def times(self, vector: Tensor, multiply: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the product with a vector; the part outside of the span is multiplied."""
        rest, product = vector, torch.zeros_like(vector)
        for _ in range(2 if self._basis else 0):  # the first projection leaves rounding errors
            for unit, image in zip(self._basis, self._images, strict=True):
                share = unit @ rest
                rest, product = rest - share * unit, product + share * image
        length = rest.norm()
        if length > ROUNDING * vector.norm():
            self._basis.append(rest / length)
            self._images.append(multiply(self._basis[-1]))
            product = product + length * self._images[-1]
        return product
