"""Gaussian problems with given spectra, and designs that have exactly their moments."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normscope.decoupled import SignedDesign

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """The first two moments of z = -y x.

    Args:
        mean: u = E[z].
        second: S = E[zz'].
    """

    mean: Array
    second: Array

    @property
    def line(self) -> Array:
        """S^{-1}u, with length one in S."""
        line = np.linalg.solve(self.second, self.mean)
        return np.asarray(line / np.sqrt(line @ self.mean))

    @property
    def quotient(self) -> float:
        """u'S^{-1}u, which is -rho*."""
        return float(self.mean @ np.linalg.solve(self.second, self.mean))

    @property
    def root(self) -> Array:
        """A square root of the covariance."""
        covariance = self.second - np.outer(self.mean, self.mean)
        return np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)

    def sampled(self, samples: int, random: np.random.Generator) -> SignedDesign:
        """Return Gaussian samples, half of them of each class."""
        drawn = self.mean + random.standard_normal((samples, len(self.mean))) @ self.root.T
        signs = np.where(np.arange(samples) % 2 == 0, 1.0, -1.0)
        return SignedDesign(-signs[:, None] * drawn, signs, constant=False)

    def matched(self) -> SignedDesign:
        """Twice as many points as dimensions, with exactly these moments."""
        size = len(self.mean)
        spread = np.sqrt(size) * self.root.T
        points = self.mean + np.concatenate([spread, -spread])
        return SignedDesign(points, np.full(2 * size, -1.0), constant=False)

    def quadrature(self, nodes: int) -> SignedDesign:
        """A product of Gauss-Hermite rules: expectations over z without sampling error."""
        points, weights = np.polynomial.hermite_e.hermegauss(nodes)
        grid = np.array(list(itertools.product(points, repeat=len(self.mean))))
        masses = np.array(list(itertools.product(weights / weights.sum(), repeat=len(self.mean))))
        mass = masses.prod(axis=1)
        kept = mass > 1e-16
        grid, mass = grid[kept], mass[kept] / mass[kept].sum()
        signs = np.full(len(grid), -1.0)
        return SignedDesign(self.mean + grid @ self.root.T, signs, False, mass)


def moments(
    dimensions: int, condition: float, quotient: float, random: np.random.Generator
) -> Moments:
    """Random moments with eigenvalues of S from 1 to ``condition`` and a given u'S^{-1}u.

    Args:
        dimensions: of z.
        condition: of S.
        quotient: u'S^{-1}u, below one.
        random: where they are drawn from.

    Returns:
        The moments.
    """
    basis, _ = np.linalg.qr(random.standard_normal((dimensions, dimensions)))
    second = basis @ np.diag(np.geomspace(1.0, condition, dimensions)) @ basis.T
    second = (second + second.T) / 2
    mean = random.standard_normal(dimensions)
    mean *= np.sqrt(quotient / (mean @ np.linalg.solve(second, mean)))
    return Moments(mean, second)


EVERY_PROBLEM = "a theorem: one problem beyond rounding refutes it"
"""The decision rule of statements without randomness, after what is compared."""


def largest_by_seed(values: xr.DataArray) -> dict[str, list[float]]:
    """Return the largest value of each seed, as the numbers of a claim."""
    others = [name for name in values.dims if name != "seed"]
    largest = values.max(others, skipna=False)
    return {"seed": values["seed"].values.tolist(), "largest": largest.values.tolist()}
