"""Quadrature rules of a symmetric matrix's spectrum, and the density of its eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammainc, ndtr
from torch import Tensor

from normscope.curvature.lanczos import Lanczos
from normscope.curvature.spaces import SearchSpace
from normscope.errors import InputError

Floats = NDArray[np.float64]

_POINTS_PER_WIDTH = 4  # grid points per standard deviation of the kernel
_WIDTHS_BEYOND = 6  # widths by which the grid extends beyond the outermost node
_SPREADS = 10  # spreads around a node; a gamma distribution has a long tail
_DECADES = 4  # between the largest eigenvalue and the linear part, by default


@dataclass(frozen=True, eq=False)
class Quadrature:
    """A Gauss rule for the spectrum of a matrix, weighted by one vector.

    Args:
        nodes: ascending; each represents the eigenvalues around it.
        weights: the share of each, nonnegative, with sum one.
        spreads: standard deviation of the eigenvalues that each node represents; near zero for a
            single eigenvalue.
        products: with the matrix.
    """

    nodes: Floats
    weights: Floats
    spreads: Floats
    products: int

    def diluted(self, share: float) -> Quadrature:
        """Return the rule of a larger matrix whose other eigenvalues are zero.

        Args:
            share: of the larger matrix's eigenvalues that this rule describes.

        Returns:
            The rule with a node at zero, if the share is not one.
        """
        if share == 1:
            return self
        zero = int(np.searchsorted(self.nodes, 0.0))
        return Quadrature(
            np.insert(self.nodes, zero, 0.0),
            np.insert(self.weights * share, zero, 1 - share),
            np.insert(self.spreads, zero, 0.0),
            self.products,
        )


def gauss_quadrature(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: int,
    on_product: Callable[[], None] = lambda: None,
) -> Quadrature:
    r"""Return the Gauss rule of a vector: exact for polynomials up to degree ``2 steps - 1``.

    .. math:: v^\top p(A)\, v = \sum_j w_j\, p(\theta_j), \qquad
        T = Q^\top A\, Q = U \Theta U^\top, \quad w_j = U_{1j}^2

    with Q the Lanczos basis from v, fully reorthogonalized, so that no eigenvalue appears twice.
    The residual of the Ritz vector y = Q u is the standard deviation of the eigenvalues in it:

    .. math:: \lVert A y - \theta y \rVert^2 = \sum_i (\lambda_i - \theta)^2 (y^\top q_i)^2

    Notation: A = the matrix with eigenpairs lambda_i, q_i; v = start of length one, theta = nodes,
    w = weights.

    Args:
        product: the matrix times a vector.
        start: any vector but zero; its length does not matter.
        steps: how many products; fewer if the vector's Krylov space is smaller, and the rule is
            then exact for every function.
        on_product: called after each product.

    Returns:
        The rule.

    >>> matrix = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    >>> rule = gauss_quadrature(matrix.mv, torch.ones(3, dtype=torch.float64), steps=3)
    >>> rule.nodes.round(6).tolist(), rule.weights.round(4).tolist()
    ([1.0, 2.0, 4.0], [0.3333, 0.3333, 0.3333])
    """
    unused = torch.Generator()  # the loop ends before Lanczos draws random directions
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
    """Return the Gauss rules of independent random directions, uniform on the sphere.

    The mean of the rules over the directions is the mean over the eigenvalues. Only one direction's
    basis is in memory at a time.

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


@dataclass(frozen=True)
class SymmetricLog:
    r"""The coordinate of a symmetric-logarithmic axis.

    .. math:: s(\lambda) = \begin{cases} \lambda / t & |\lambda| \le t \\
        \operatorname{sign}(\lambda) (1 + \log_{10}(|\lambda| / t)) & \text{beyond} \end{cases}

    It is matplotlib's ``symlog`` with ``linscale=0.9``.

    Args:
        threshold: t, where the linear part ends.

    >>> SymmetricLog(0.01).position(np.array([-1.0, 0.005, 10.0])).tolist()
    [-3.0, 0.5, 4.0]
    """

    threshold: float

    def position(self, values: Floats) -> Floats:
        """Return the positions of eigenvalues on the axis."""
        ratio = np.abs(values) / self.threshold
        beyond = 1 + np.log10(np.maximum(ratio, 1))
        return np.sign(values) * np.where(ratio <= 1, ratio, beyond)

    def value(self, positions: Floats) -> Floats:
        """Return the eigenvalues at positions of the axis."""
        size = np.abs(positions)
        beyond = 10 ** (np.maximum(size, 1) - 1)
        return np.sign(positions) * self.threshold * np.where(size <= 1, size, beyond)


def axis_for(rules: list[Quadrature], threshold: float | None) -> SymmetricLog:
    """Return an axis that resolves the nodes of some rules.

    Args:
        rules: of one matrix.
        threshold: where the linear part ends; None: the power of ten four decades below the
            largest node, rounded down.

    Returns:
        The axis.

    Raises:
        InputError: if the threshold is not positive.
    """
    if threshold is None:
        largest = max(float(np.abs(rule.nodes).max()) for rule in rules)
        threshold = 10.0 ** (math.floor(math.log10(largest)) - _DECADES) if largest > 0 else 1.0
    if not (threshold > 0 and math.isfinite(threshold)):
        raise InputError(f"linear_threshold must be a positive number, got {threshold}.")
    return SymmetricLog(threshold)


def grid(rules: list[Quadrature], axis: SymmetricLog, width: float, nonnegative: bool) -> Floats:
    """Return evenly spaced positions that cover all nodes with their spread and smoothing."""
    lowest = min(float((rule.nodes - _SPREADS * rule.spreads).min()) for rule in rules)
    highest = max(float((rule.nodes + _SPREADS * rule.spreads).max()) for rule in rules)
    if nonnegative:  # a node may be below zero by rounding, but not by its spread
        lowest = max(lowest, min(0.0, *(float(rule.nodes[0]) for rule in rules)))
    first, last = axis.position(np.array([lowest, highest]))
    spacing = width / _POINTS_PER_WIDTH
    beyond = _WIDTHS_BEYOND * _POINTS_PER_WIDTH
    steps = np.arange(math.floor(first / spacing) - beyond, math.ceil(last / spacing) + beyond + 1)
    return np.asarray(steps * spacing)


def cumulative(rule: Quadrature, values: Floats, nonnegative: bool) -> Floats:
    """Return the share of the eigenvalues that are not above each value.

    A node represents eigenvalues with its mean and spread. They are modelled by a normal
    distribution, or by a gamma distribution if none can be negative. A node without spread is one
    step.

    Args:
        rule: nodes, weights and spreads.
        values: where.
        nonnegative: whether the matrix has no negative eigenvalue.

    Returns:
        One share for each value.

    >>> rule = Quadrature(np.array([0.0, 2.0]), np.array([0.75, 0.25]), np.zeros(2), products=2)
    >>> cumulative(rule, np.array([-1.0, 1.0, 3.0]), nonnegative=False).tolist()
    [0.0, 0.75, 1.0]
    """
    tiny = np.finfo(np.float64).tiny
    with np.errstate(over="ignore"):  # far from a node without spread
        shares = ndtr((values[:, None] - rule.nodes) / np.maximum(rule.spreads, tiny))
    # where the spread is small relative to the node, the two distributions agree
    skewed = nonnegative & (rule.spreads > 0.01 * np.abs(rule.nodes)) & (rule.nodes > 0)
    shape = (rule.nodes[skewed] / rule.spreads[skewed]) ** 2
    scaled = np.maximum(values, 0.0)[:, None] / rule.nodes[skewed] * shape
    shares[:, skewed] = gammainc(shape, scaled)
    return np.asarray(shares @ rule.weights)


def smoothed(
    rule: Quadrature, axis: SymmetricLog, positions: Floats, width: float, nonnegative: bool
) -> Floats:
    """Return the density of a rule per unit of the axis, smoothed by a Gaussian kernel.

    Args:
        rule: nodes, weights and spreads.
        axis: the coordinate in which it is a density.
        positions: evenly spaced, as `grid` gives them.
        width: standard deviation of the kernel, in units of the axis, which are decades.
        nonnegative: as for `cumulative`.

    Returns:
        The density at each position; its integral over the axis is one.
    """
    spacing = width / _POINTS_PER_WIDTH
    edges = np.append(positions - spacing / 2, positions[-1] + spacing / 2)
    # rounding can make a constant part decrease
    shares = np.maximum(np.diff(cumulative(rule, axis.value(edges), nonnegative)), 0.0)
    reach = np.arange(-_WIDTHS_BEYOND * _POINTS_PER_WIDTH, _WIDTHS_BEYOND * _POINTS_PER_WIDTH + 1)
    kernel = np.exp(-((reach / _POINTS_PER_WIDTH) ** 2) / 2)
    return np.convolve(shares / spacing, kernel / kernel.sum(), mode="same")
