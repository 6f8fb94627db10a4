"""The trace of a symmetric matrix from few products: Hutch++."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["TraceEstimate", "exact_trace", "hutch_plus_plus"]

FEWEST_PRODUCTS = 4


@dataclass(frozen=True, eq=False)
class TraceEstimate:
    """A trace in two parts.

    Args:
        captured: the trace on the sketched subspace, exact.
        remainders: independent estimates of the rest; none if there is no rest.
        products: with the matrix.
    """

    captured: float
    remainders: Tensor
    products: int

    @property
    def value(self) -> float:
        """The estimate of the trace."""
        return self.captured + (float(self.remainders.mean()) if len(self.remainders) else 0.0)

    @property
    def standard_error(self) -> float:
        """Of the value: the remainders' spread over the root of their number."""
        count = len(self.remainders)
        return float(self.remainders.std()) / count**0.5 if count else 0.0

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        names = ("value", "standard_error", "captured", "products")
        values = {name.replace("_", " "): getattr(self, name) for name in names}
        return pairs_html(values, "A trace in two parts")


def exact_trace(multiply: Callable[[Tensor], Tensor], like: Tensor) -> TraceEstimate:
    """The trace column by column.

    Args:
        multiply: the matrix times a block of columns.
        like: a vector of the right size, dtype and device.

    Returns:
        The trace, without error.
    """
    size = len(like)
    image = multiply(torch.eye(size, dtype=like.dtype, device=like.device))
    return TraceEstimate(float(image.diagonal().double().sum()), torch.empty(0), size)


def hutch_plus_plus(
    multiply: Callable[[Tensor], Tensor], like: Tensor, products: int, seed: int
) -> TraceEstimate:
    r"""The trace on a sketch of the range exactly, and on the rest by random vectors.

    .. math:: \operatorname{tr} A = \operatorname{tr}(Q^\top A Q)
        + \operatorname{E}\, z^\top A z, \qquad z = (I - Q Q^\top) g

    with Q an orthonormal basis of A S, S and g random signs. A third of the products makes Q,
    another third the first term. Few large eigenvalues, the rule in networks, fall to the exact
    part, and the error falls like one over the products rather than their root. The method is
    Meyer, Musco, Musco and Woodruff's (2021).

    Notation: A = the matrix, Q = basis.

    Args:
        multiply: the matrix times a block of columns.
        like: a vector of the right size, dtype and device.
        products: how many to make, at least 4.
        seed: of the random signs.

    Returns:
        The estimate.
    """
    sketched = products // 3
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(multiply(_signs(like, sketched, generator))).Q
    captured = float((basis * multiply(basis)).sum(dtype=torch.float64))
    probes = _signs(like, products - 2 * sketched, generator)
    probes -= basis @ (basis.T @ probes)
    del basis
    remainders = (probes * multiply(probes)).sum(0, dtype=torch.float64)
    return TraceEstimate(captured, remainders.cpu(), products)


def _signs(like: Tensor, columns: int, generator: torch.Generator) -> Tensor:
    """Columns of random signs; drawn on the CPU, so that every device sees the same."""
    drawn = torch.randint(2, (columns, len(like)), generator=generator, dtype=torch.int8)
    return (2 * drawn - 1).T.to(like.device, like.dtype)
