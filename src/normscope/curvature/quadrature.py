"""Quadrature rules of a symmetric matrix's spectrum, by Lanczos from random vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.curvature.lanczos import Lanczos
from normscope.curvature.spaces import SearchSpace

__all__ = ["Quadrature", "gauss_quadrature", "random_quadratures"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Quadrature:
    """A Gauss rule for the spectrum of a matrix as one vector sees it.

    Args:
        nodes: ascending; each stands for the eigenvalues around it.
        weights: the share of each, not negative, of sum one.
        spreads: standard deviation of the eigenvalues that each node stands for; near zero where
            it is one eigenvalue.
        products: with the matrix, that it took.
    """

    nodes: Floats
    weights: Floats
    spreads: Floats
    products: int

    def diluted(self, share: float) -> Quadrature:
        """The rule of a larger matrix of which this is all but zeros.

        Args:
            share: the part of the larger matrix's eigenvalues that this rule is about; the others
                are zero.

        Returns:
            The rule with a node at zero, if the share is not one.
        """
        if share == 1:
            return self
        place = int(np.searchsorted(self.nodes, 0.0))
        return Quadrature(
            np.insert(self.nodes, place, 0.0),
            np.insert(self.weights * share, place, 1 - share),
            np.insert(self.spreads, place, 0.0),
            self.products,
        )


def gauss_quadrature(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: int,
    on_product: Callable[[], None] = lambda: None,
) -> Quadrature:
    r"""The Gauss rule of a vector: exact for polynomials up to degree ``2 steps - 1``.

    .. math:: v^\top p(A)\, v = \sum_j w_j\, p(\theta_j), \qquad
        T = Q^\top A\, Q = U \Theta U^\top, \quad w_j = U_{1j}^2

    with Q the Lanczos basis from v, kept orthogonal in full, so that no eigenvalue appears twice.
    The residual of the Ritz vector y = Q u is the standard deviation of the eigenvalues in it:

    .. math:: \lVert A y - \theta y \rVert^2 = \sum_i (\lambda_i - \theta)^2 (y^\top q_i)^2

    Notation: A = the matrix with eigenpairs lambda_i, q_i; v = start of length one, theta = nodes,
    w = weights.

    Args:
        product: the matrix times a vector.
        start: any vector but zero; its length does not matter.
        steps: how many products; fewer are made if the vector's Krylov space ends before, and the
            rule is then exact for every function.
        on_product: called after each product.

    Returns:
        The rule.

    >>> matrix = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    >>> rule = gauss_quadrature(matrix.mv, torch.ones(3, dtype=torch.float64), steps=3)
    >>> rule.nodes.round(6).tolist(), rule.weights.round(4).tolist()
    ([1.0, 2.0, 4.0], [0.3333, 0.3333, 0.3333])
    """
    unused = torch.Generator()  # random directions would spoil the rule: it ends before them
    lanczos = Lanczos(product, start.unsqueeze(1), steps, unused)
    while lanczos.products < lanczos.limit and lanczos.done < lanczos.held:
        lanczos.step()
        on_product()
    pairs = lanczos.ritz_pairs("smallest", lanczos.done)
    weights = pairs.coefficients[0].square()
    return Quadrature(
        pairs.values.numpy(),
        (weights / weights.sum()).numpy(),
        pairs.residuals.numpy(),
        lanczos.products,
    )


def random_quadratures(
    space: SearchSpace,
    probes: int,
    steps: int,
    seed: int,
    on_product: Callable[[], None] = lambda: None,
) -> Iterator[Quadrature]:
    """Gauss rules of independent directions, all directions equally likely.

    The mean of a rule's sums over the directions is the mean over the eigenvalues. Only one
    direction's basis is in memory at a time.

    Args:
        space: the matrix.
        probes: how many directions.
        steps: products for each.
        seed: of the directions.
        on_product: called after each product.

    Yields:
        One rule for each direction.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(probes):
        # normal entries, not signs: signs can miss an eigenvector such as (1, -1) altogether
        drawn = torch.randn(space.size, generator=generator)
        start = drawn.to(space.device, space.dtype)
        yield gauss_quadrature(space.times, start, steps, on_product)
