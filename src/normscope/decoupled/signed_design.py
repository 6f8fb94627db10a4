"""The samples z = -y x behind one operator: dense or sparse, centred, with a constant column."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg, eigsh

__all__ = ["LARGEST_FORMED", "SignedDesign"]

Array = NDArray[np.float64]

LARGEST_FORMED = 512  # above so many columns the second moment is used as an operator only


class SignedDesign:
    r"""Samples z = -y x and their moments, without a copy of the input.

    .. math:: u = E[z], \qquad S = E[z z^T] = E[x x^T]

    With a constant column the input is centred first, as batch normalization does, and the column
    has the mean variance of the others: it lies within the spectrum of S and changes neither end.

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization.

    Args:
        inputs: (samples, features), dense or sparse; never densified.
        signs: +1 or -1 per sample.
        constant: append a constant column, and centre the others.
        weights: of the samples, with sum one; None for equal ones.
    """

    def __init__(
        self, inputs: Any, signs: Array, constant: bool, weights: Array | None = None
    ) -> None:
        self.inputs = inputs
        self.signs = signs
        self.samples, self.features = inputs.shape
        self.constant = constant
        self.size = self.features + constant
        self.weights = np.full(self.samples, 1 / self.samples) if weights is None else weights
        self.centre = np.asarray(inputs.T @ self.weights) if constant else np.zeros(0)
        squares = inputs.multiply(inputs) if sparse.issparse(inputs) else np.square(inputs)
        variance = float(np.sum(squares.T @ self.weights) - self.centre @ self.centre)
        self.scale = float(np.sqrt(max(variance, 0.0) / self.features)) or 1.0

    def project(self, w: Array) -> Array:
        """Projections x'w of every sample."""
        projections = np.asarray(self.inputs @ w[: self.features])
        if self.constant:
            projections = projections - (self.centre @ w[:-1] - self.scale * w[-1])
        return projections

    def margins(self, w: Array) -> Array:
        """Margins z'w of every sample."""
        return -self.signs * self.project(w)

    def adjoint(self, weights: Array) -> Array:
        """The sum of z over the samples, weighted."""
        return self._gather(-self.signs * weights)

    def _gather(self, weights: Array) -> Array:
        gathered = np.asarray(self.inputs.T @ weights)
        if self.constant:
            total = weights.sum()
            gathered = np.append(gathered - total * self.centre, self.scale * total)
        return gathered

    @cached_property
    def mean(self) -> Array:
        """The mean, u = E[z]."""
        return self.adjoint(self.weights)

    @property
    def formed(self) -> bool:
        """Whether S is small enough to be held as a matrix."""
        return bool(self.size <= min(LARGEST_FORMED, self.samples))

    @cached_property
    def moment(self) -> Array:
        """S as a matrix (size, size)."""
        return np.stack([self._moment_product(column) for column in np.eye(self.size)], axis=1)

    def second_moment(self, w: Array) -> Array:
        """S w."""
        return np.asarray(self.moment @ w) if self.formed else self._moment_product(w)

    def _moment_product(self, w: Array) -> Array:
        return self._gather(self.weights * self.project(w))

    @cached_property
    def spectrum(self) -> tuple[float, float | None]:
        """Largest and smallest eigenvalue of S; the smallest None where S is not formed."""
        if self.formed:
            eigenvalues = np.linalg.eigvalsh(self.moment)
            return float(eigenvalues[-1]), max(float(eigenvalues[0]), 0.0)
        if self.size == 1 or not np.any(self.mean):
            return float(self._moment_product(np.ones(self.size)).sum()) / self.size, None
        start = np.ones(self.size) + self.mean / np.linalg.norm(self.mean)
        top = eigsh(self._operator(), k=1, v0=start, tol=1e-6, return_eigenvectors=False)
        return float(top[0]) * (1 + 1e-6), None

    def solve(self, vector: Array) -> Array:
        """S^{-1} times a vector of the range of S."""
        if self.formed:
            return np.asarray(self._inverse @ vector)
        solution, _ = cg(self._operator(), vector, rtol=1e-10, maxiter=10 * self.size)
        return np.asarray(solution)

    @cached_property
    def _inverse(self) -> Array:
        return np.asarray(np.linalg.pinv(self.moment, hermitian=True))

    def _operator(self) -> LinearOperator:
        shape = (self.size, self.size)
        return LinearOperator(shape, matvec=self.second_moment, dtype=np.float64)

    def unscaled(self, w: Array) -> tuple[Array, float]:
        """The coefficients and the intercept, for inputs as they were given."""
        if not self.constant:
            return w.copy(), 0.0
        return w[:-1].copy(), float(self.scale * w[-1] - self.centre @ w[:-1])
