"""Inputs in coordinates in which gradient steps do not depend on the scale of columns."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from normscope.decoupled.design import NO_SPREAD, SecondMoment, column_ends
from normscope.errors import InputError

Array = NDArray[np.float64]


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
