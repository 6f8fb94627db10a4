"""Samples and their second moment S behind one operator: dense or sparse, centred, whitened."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg, eigsh

from normscope.errors import InputError, NormscopeWarning

Array = NDArray[np.float64]

LARGEST_FORMED = 512  # columns up to which S is formed as a matrix
_EIGENVALUE_ACCURACY = 1e-6
NO_SPREAD = 1e-14  # standard deviation over mean below which a column is constant


class SecondMoment:
    r"""Inputs x and S = E[x x'], which does not depend on the labels.

    With a constant column the input is centred first, as batch normalization does, and the column
    is scaled to the mean variance of those that vary, so that it does not change the extreme
    eigenvalues of S. Constant columns of the input are then exactly zero. Dense input is copied;
    sparse input is centred within the products.

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization.

    Args:
        inputs: (samples, features), dense or sparse; sparse input is never densified.
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
        self._rows: Any = self.inputs
        self._shift: Array | None = None
        if constant:
            self.centre = column_centres(self.inputs, self.weights)
            self._rows, self._shift = self._centred(thin)
        about = self.centre if thin else np.zeros(self.features)  # dense rows are centred already
        self.variances = column_variances(self.inputs if thin else self._rows, about, self.weights)
        varied = self.variances[self.variances > 0]
        self.scale = float(np.sqrt(varied.mean())) if len(varied) else 1.0

    def _centred(self, thin: bool) -> tuple[Any, Array | None]:
        """Return the rows to multiply with, and what is still to be subtracted from them."""
        if not thin:
            rows = self.inputs - self.centre
            # the mean itself is rounded; a second pass removes what is left
            return rows - np.asarray(rows.T @ self.weights), None
        varying = varying_columns(self.inputs).astype(np.float64)
        # constant columns are removed, since subtracting their mean leaves rounding errors
        rows = self.inputs if varying.all() else self.inputs @ sparse.diags_array(varying)
        return rows, self.centre * varying

    def project(self, w: Array) -> Array:
        """Return the projections x'w of every sample."""
        projections = np.asarray(self._rows @ w[: self.features])
        if self._shift is not None:
            projections = projections - self._shift @ w[: self.features]
        return projections + self.scale * w[-1] if self.constant else projections

    def gather(self, weights: Array) -> Array:
        """Return the weighted sum of x over the samples."""
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
        """Return S w."""
        return np.asarray(self.matrix @ w) if self.formed else self._product(w)

    def _product(self, w: Array) -> Array:
        return self.gather(self.weights * self.project(w))

    @cached_property
    def spectrum(self) -> tuple[float, float | None]:
        """Largest and smallest eigenvalue of S; the smallest is None if S is not formed."""
        if self.formed:
            eigenvalues = np.linalg.eigvalsh(self.matrix)
            return float(eigenvalues[-1]), max(float(eigenvalues[0]), 0.0)
        # a random start, since any fixed one may be orthogonal to the eigenvector
        start = np.random.default_rng(0).standard_normal(self.size)
        if not np.any(self._product(start)):  # the input is zero
            return 0.0, None
        operator = LinearOperator((self.size,) * 2, matvec=self._product, dtype=np.float64)
        top = eigsh(operator, k=1, v0=start, tol=_EIGENVALUE_ACCURACY, return_eigenvectors=False)
        return float(top[0]) * (1 + _EIGENVALUE_ACCURACY), None

    def solve(self, vector: Array) -> Array:
        """Return a solution of S x = v for v in the range of S.

        Columns are scaled to unit size first. If S is not formed, it is solved by conjugate
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
        """One over the root mean square of each column; one for columns of zeros."""
        spread = np.sqrt(self.variances)
        spread = np.where(spread > NO_SPREAD * np.abs(self.centre), spread, 1.0)
        return 1 / (np.append(spread, self.scale) if self.constant else spread)

    @cached_property
    def _inverse(self) -> Array:
        """The pseudoinverse of S with its columns scaled to unit size."""
        even = self._scales[:, None] * self.matrix * self._scales
        rounding = self.size * np.finfo(np.float64).eps
        return np.asarray(np.linalg.pinv(even, rcond=rounding, hermitian=True))

    def dual_norm(self, gradient: Array) -> float:
        """Return the norm in S^{-1}, which no linear map of the inputs changes.

        If S is not formed, return the largest entry over the root mean square of its column, which
        is a lower bound of it.
        """
        if self.formed:
            return float(np.sqrt(max(float(gradient @ self.solve(gradient)), 0.0)))
        return float(np.abs(self._scales * gradient).max())

    def unscaled(self, w: Array) -> tuple[Array, float]:
        """Return coefficients and intercept for inputs as they were given."""
        if not self.constant:
            return w.copy(), 0.0
        return w[:-1].copy(), float(self.scale * w[-1] - self.centre @ w[:-1])


class SignedDesign:
    r"""Samples z = -y x and their moments.

    .. math:: u = E[z], \qquad S = E[z z^T] = E[x x^T]

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization.

    Args:
        inputs: (samples, features), dense or sparse; or a
            :class:`~normscope.decoupled.SecondMoment` to share, which has its own constant column
            and weights.
        signs: +1 or -1 per sample.
        constant: append a constant column, and centre the others.
        weights: of the samples, with sum one; None for equal ones.
    """

    def __init__(
        self,
        inputs: Any,
        signs: Sequence[float] | Array,
        constant: bool,
        weights: Array | None = None,
    ) -> None:
        shared = isinstance(inputs, SecondMoment)
        self.moments: SecondMoment = inputs if shared else SecondMoment(inputs, constant, weights)
        self.signs = np.asarray(signs, dtype=np.float64)

    @property
    def inputs(self) -> Any:
        """The inputs as they were given."""
        return self.moments.inputs

    @property
    def size(self) -> int:
        """Number of weights: features, and one for the constant column."""
        return int(self.moments.size)

    @property
    def weights(self) -> Array:
        """Weights of the samples, with sum one."""
        return self.moments.weights

    def margins(self, w: Array) -> Array:
        """Return the margins z'w of every sample."""
        return -self.signs * self.moments.project(w)

    def adjoint(self, weights: Array) -> Array:
        """Return the weighted sum of z over the samples."""
        return self.moments.gather(-self.signs * weights)

    @cached_property
    def mean(self) -> Array:
        """The mean, u = E[z]."""
        return self.adjoint(self.weights)

    def second_moment(self, w: Array) -> Array:
        """Return S w."""
        return self.moments.apply(w)

    def solve(self, vector: Array) -> Array:
        """Return a solution of S x = v for v in the range of S; warn if it is not exact."""
        return self.moments.solve(vector)


def column_ends(inputs: Any) -> tuple[Array, Array]:
    """Return the least and the largest entry of each column."""
    if sparse.issparse(inputs):
        least, largest = inputs.min(axis=0), inputs.max(axis=0)
        return least.toarray().ravel(), largest.toarray().ravel()
    return inputs.min(axis=0), inputs.max(axis=0)


def varying_columns(inputs: Any) -> NDArray[np.bool_]:
    """Return whether each column has more than one value.

    >>> varying_columns(np.array([[1.0, 2.0], [1.0, 3.0]]))
    array([False,  True])
    """
    least, largest = column_ends(inputs)
    return np.asarray(least != largest)


def column_centres(inputs: Any, weights: Array) -> Array:
    """Return the weighted mean of each column; exact for constant columns.

    Args:
        inputs: (samples, features), dense or sparse.
        weights: of the samples, with sum one.

    Returns:
        (features,).

    >>> column_centres(np.full((3, 1), 0.1), np.full(3, 1 / 3)).item()
    0.1
    """
    least, largest = column_ends(inputs)
    means = np.clip(np.asarray(inputs.T @ weights), least, largest)
    if not sparse.issparse(inputs):  # a second pass removes the rounding error of the first
        means = means + (inputs - means).T @ weights
    return np.asarray(np.where(least == largest, least, means))


def column_variances(inputs: Any, centres: Array, weights: Array) -> Array:
    """Return the weighted mean square of each column about its centre.

    Args:
        inputs: (samples, features), dense or sparse.
        centres: (features,).
        weights: of the samples, with sum one.

    Returns:
        (features,).

    >>> column_variances(np.array([[1e9 - 1], [1e9 + 1]]), np.array([1e9]), np.full(2, 0.5)).item()
    1.0
    """
    if not sparse.issparse(inputs):
        return np.asarray(np.square(inputs - centres).T @ weights)
    stored = sparse.csc_array(inputs, copy=True)
    stored.sum_duplicates()
    counts = np.diff(stored.indptr)
    masses = weights[stored.indices]
    columns = np.repeat(np.arange(stored.shape[1]), counts)
    about = masses * (stored.data - centres[columns]) ** 2
    kept = np.bincount(columns, about, stored.shape[1])
    mass = np.bincount(columns, masses, stored.shape[1])
    # a column with every entry stored has no zeros, despite rounding errors of the weights
    zeros = np.where(counts == stored.shape[0], 0.0, np.maximum(1 - mass, 0.0))
    return np.asarray(kept + zeros * centres**2)


class WhitenedMoment(SecondMoment):
    """Inputs with columns scaled to unit size, and whitened if S is small enough to be formed.

    Whitened weights v stand for w = T v with T'ST = I, so that S is the identity. Directions in
    which the samples do not vary are left out.

    Args:
        inputs: (samples, features), dense or sparse; sparse input is never densified.
        constant: append a constant column, and centre the others.

    Raises:
        InputError: if the spread of a column is too small or too large for its square.
    """

    def __init__(self, inputs: Any, constant: bool) -> None:
        with np.errstate(over="ignore", under="ignore"):
            super().__init__(inputs, constant)
        self.units = self._column_units()
        thin = sparse.issparse(self._rows)  # centred before it is scaled, if it is dense
        scaled = (
            self._rows @ sparse.diags_array(1 / self.units) if thin else self._rows / self.units
        )
        self._rows = scaled
        self._shift = None if self._shift is None else self._shift / self.units
        self.variances, self.scale = self.variances / self.units**2, 1.0
        self._back: Array | None = None
        back = self._whitening() if self.formed else np.empty((self.size, 0))
        back[np.flatnonzero(self.variances == 0)] = 0.0  # exactly, whatever the mean of the column
        if back.shape[1]:
            self._back, self.size = back, back.shape[1]

    def _column_units(self) -> Array:
        """Return the root mean square of each column; one for columns that do not vary."""
        spread, (least, largest) = np.sqrt(self.variances), column_ends(self.inputs)
        alike = (least == largest) if self.constant else (least == 0) & (largest == 0)
        wrong = np.flatnonzero(~alike & ~((spread > 0) & np.isfinite(spread)))
        if len(wrong):
            raise InputError(
                f"column {wrong[0]} is too small or too large for its square to be a number; scale "
                "it to values near one."
            )
        return np.where(spread > NO_SPREAD * np.abs(self.centre), spread, 1.0)

    def _whitening(self) -> Array:
        """Return T (size, rank)."""
        if sparse.issparse(self._rows):
            eigenvalues, basis = np.linalg.eigh(self.matrix)
            kept = eigenvalues > eigenvalues[-1] * self.size * np.finfo(float).eps
            return np.asarray(basis[:, kept] / np.sqrt(eigenvalues[kept]))
        rows = np.sqrt(self.weights)[:, None] * self._rows
        if self.constant:
            rows = np.column_stack([rows, self.scale * np.sqrt(self.weights)])
        # triangular factor and singular values have twice the digits of S and its eigenvalues
        _, roots, basis = np.linalg.svd(np.linalg.qr(rows, mode="r"))
        kept = roots > roots[0] * max(rows.shape) * np.finfo(float).eps
        return np.asarray(basis[kept].T / roots[kept])

    def project(self, w: Array) -> Array:
        """Return the projections x'w of every sample."""
        return super().project(w if self._back is None else self._back @ w)

    def gather(self, weights: Array) -> Array:
        """Return the weighted sum of x over the samples."""
        gathered = super().gather(weights)
        return gathered if self._back is None else np.asarray(self._back.T @ gathered)

    def apply(self, w: Array) -> Array:
        """Return S w."""
        return super().apply(w) if self._back is None else w.copy()

    @cached_property
    def spectrum(self) -> tuple[float, float | None]:
        """Largest and smallest eigenvalue of S; the smallest is None if S is not formed."""
        return super().spectrum if self._back is None else (1.0, 1.0)

    def solve(self, vector: Array) -> Array:
        """Return a solution of S x = v for v in the range of S."""
        return super().solve(vector) if self._back is None else vector.copy()

    def unscaled(self, w: Array) -> tuple[Array, float]:
        """Return coefficients and intercept for inputs as they were given."""
        weights = w.copy() if self._back is None else self._back @ w
        weights[: self.features] /= self.units
        return super().unscaled(weights)
