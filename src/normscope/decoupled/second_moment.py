"""The inputs and their second moment S behind one operator: dense or sparse, centred if asked."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg, eigsh

from normscope.decoupled.columns import column_centres, column_variances, varying_columns
from normscope.errors import NormscopeWarning

__all__ = ["LARGEST_FORMED", "SecondMoment"]

Array = NDArray[np.float64]

LARGEST_FORMED = 512  # above so many columns the second moment is used as an operator only
_EIGENVALUE_ACCURACY = 1e-6
_NO_SPREAD = 1e-14  # of a column's mean: less than that is the rounding of the mean


class SecondMoment:
    r"""Inputs x and S = E[x x'], which does not depend on the labels.

    With a constant column the input is centred first, as batch normalization does, and the column
    has the mean variance of those that vary: it lies within the spectrum of S and changes neither
    end of it.
    Columns that do not vary are then exactly zero. Dense input is copied for that; sparse input is
    centred within the products and stays as it is.

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization.

    Args:
        inputs: (samples, features), dense or sparse; never densified.
        constant: append a constant column, and centre the others.
        weights: of the samples, with sum one; None for equal ones.
    """

    def __init__(self, inputs: Any, constant: bool, weights: Array | None = None) -> None:
        thin = sparse.issparse(inputs)
        self.inputs = inputs if thin else np.asarray(inputs, dtype=np.float64)
        self.samples, self.features = self.inputs.shape
        self.constant = bool(constant)
        self.size = self.features + self.constant
        self.weights = np.full(self.samples, 1 / self.samples) if weights is None else weights
        self.centre = np.zeros(self.features)
        self._rows, self._shift = self.inputs, None
        if constant:
            self.centre = column_centres(self.inputs, self.weights)
            self._rows, self._shift = self._centred(thin)
        about = self.centre if thin else np.zeros(self.features)  # dense rows are centred by now
        self.variances = column_variances(self.inputs if thin else self._rows, about, self.weights)
        varied = self.variances[self.variances > 0]
        self.scale = float(np.sqrt(varied.mean())) if len(varied) else 1.0

    def _centred(self, thin: bool) -> tuple[Any, Array | None]:
        """Rows to multiply with, and what is still to be subtracted from them."""
        if not thin:
            rows = self.inputs - self.centre
            # a large mean is rounded itself; a second pass takes out what that left
            return rows - np.asarray(rows.T @ self.weights), None
        varying = varying_columns(self.inputs).astype(np.float64)
        # columns that do not vary are taken out: their mean would leave its rounding behind
        rows = self.inputs if varying.all() else self.inputs @ sparse.diags_array(varying)
        return rows, self.centre * varying

    def project(self, w: Array) -> Array:
        """Projections x'w of every sample."""
        projections = np.asarray(self._rows @ w[: self.features])
        if self._shift is not None:
            projections = projections - self._shift @ w[: self.features]
        return projections + self.scale * w[-1] if self.constant else projections

    def gather(self, weights: Array) -> Array:
        """The sum of x over the samples, weighted."""
        gathered = np.asarray(self._rows.T @ weights)
        if self._shift is not None:
            gathered = gathered - weights.sum() * self._shift
        return np.append(gathered, self.scale * weights.sum()) if self.constant else gathered

    @property
    def formed(self) -> bool:
        """Whether S is small enough to be held as a matrix."""
        return bool(self.size <= min(LARGEST_FORMED, self.samples))

    @cached_property
    def matrix(self) -> Array:
        """S as a matrix (size, size)."""
        if sparse.issparse(self._rows):
            return np.stack([self._product(column) for column in np.eye(self.size)], axis=1)
        rows = self._rows
        if self.constant:
            rows = np.column_stack([rows, np.full(self.samples, self.scale)])
        return np.asarray(rows.T @ (self.weights[:, None] * rows))

    def apply(self, w: Array) -> Array:
        """S w."""
        return np.asarray(self.matrix @ w) if self.formed else self._product(w)

    def _product(self, w: Array) -> Array:
        return self.gather(self.weights * self.project(w))

    @cached_property
    def spectrum(self) -> tuple[float, float | None]:
        """Largest and smallest eigenvalue of S; the smallest None where S is not formed."""
        if self.formed:
            eigenvalues = np.linalg.eigvalsh(self.matrix)
            return float(eigenvalues[-1]), max(float(eigenvalues[0]), 0.0)
        # no direction known beforehand may serve as the start: it can be orthogonal to the answer
        start = np.random.default_rng(0).standard_normal(self.size)
        if not np.any(self._product(start)):  # the input is zero
            return 0.0, None
        operator = LinearOperator((self.size,) * 2, matvec=self._product, dtype=np.float64)
        top = eigsh(operator, k=1, v0=start, tol=_EIGENVALUE_ACCURACY, return_eigenvectors=False)
        return float(top[0]) * (1 + _EIGENVALUE_ACCURACY), None

    def solve(self, vector: Array) -> Array:
        """A solution of S x = v for v of the range of S.

        Columns are brought to one scale first. Where S is not formed it is found by conjugate
        gradients, with a :class:`~normscope.errors.NormscopeWarning` if they do not converge.
        """
        scales = self._scales
        if self.formed:
            return np.asarray(scales * (self._inverse @ (scales * vector)))

        def product(w: Array) -> Array:
            return scales * self._product(scales * w)

        operator = LinearOperator((self.size,) * 2, matvec=product, dtype=np.float64)
        right = scales * vector
        solution, status = cg(operator, right, rtol=1e-10, maxiter=10 * self.size)
        if status != 0:
            left = np.linalg.norm(product(solution) - right) / np.linalg.norm(right)
            warnings.warn(
                f"conjugate gradients left a relative residual of {left:.1e} in S x = v, so "
                "u'S^-1 u and the alignment are not exact; remove columns that nearly depend on "
                "others.",
                NormscopeWarning,
                stacklevel=2,
            )
        return np.asarray(scales * solution)

    @cached_property
    def _scales(self) -> Array:
        """One over the root mean square of each column; one for columns without any."""
        spread = np.sqrt(self.variances)
        spread = np.where(spread > _NO_SPREAD * np.abs(self.centre), spread, 1.0)
        return 1 / (np.append(spread, self.scale) if self.constant else spread)

    @cached_property
    def _inverse(self) -> Array:
        """The pseudoinverse of S with its columns brought to one scale."""
        even = self._scales[:, None] * self.matrix * self._scales
        rounding = self.size * np.finfo(np.float64).eps
        return np.asarray(np.linalg.pinv(even, rcond=rounding, hermitian=True))

    def unscaled(self, w: Array) -> tuple[Array, float]:
        """The coefficients and the intercept, for inputs as they were given."""
        if not self.constant:
            return w.copy(), 0.0
        return w[:-1].copy(), float(self.scale * w[-1] - self.centre @ w[:-1])
