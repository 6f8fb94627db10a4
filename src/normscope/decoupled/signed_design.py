"""The samples z = -y x behind one operator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.decoupled.second_moment import SecondMoment

__all__ = ["SignedDesign"]

Array = NDArray[np.float64]


class SignedDesign:
    r"""Samples z = -y x and their moments.

    .. math:: u = E[z], \qquad S = E[z z^T] = E[x x^T]

    With a constant column the input is centred first, as batch normalization does: dense input in
    a copy, sparse input within the products. Without one the input is used as it is.

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization.

    Args:
        inputs: (samples, features), dense or sparse, which is never densified; or the
            :class:`~normscope.decoupled.SecondMoment` of another design, to be shared, which has
            its own constant column and weights.
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
        self.moments = inputs if shared else SecondMoment(inputs, constant, weights)
        self.signs = np.asarray(signs, dtype=np.float64)

    @property
    def inputs(self) -> Any:
        """The inputs as they were given."""
        return self.moments.inputs

    @property
    def samples(self) -> int:
        """How many."""
        return int(self.moments.samples)

    @property
    def size(self) -> int:
        """Features, and one for the constant column."""
        return int(self.moments.size)

    @property
    def weights(self) -> Array:
        """Of the samples, with sum one."""
        return self.moments.weights

    def margins(self, w: Array) -> Array:
        """Margins z'w of every sample."""
        return -self.signs * self.moments.project(w)

    def adjoint(self, weights: Array) -> Array:
        """The sum of z over the samples, weighted."""
        return self.moments.gather(-self.signs * weights)

    @cached_property
    def mean(self) -> Array:
        """The mean, u = E[z]."""
        return self.adjoint(self.weights)

    @property
    def formed(self) -> bool:
        """Whether S is small enough to be held as a matrix."""
        return self.moments.formed

    @property
    def moment(self) -> Array:
        """S as a matrix (size, size)."""
        return self.moments.matrix

    def second_moment(self, w: Array) -> Array:
        """S w."""
        return self.moments.apply(w)

    @property
    def spectrum(self) -> tuple[float, float | None]:
        """Largest and smallest eigenvalue of S; the smallest None where S is not formed."""
        return self.moments.spectrum

    def solve(self, vector: Array) -> Array:
        """A solution of S x = v for v of the range of S; warns where it is not exact."""
        return self.moments.solve(vector)

    def unscaled(self, w: Array) -> tuple[Array, float]:
        """The coefficients and the intercept, for inputs as they were given."""
        return self.moments.unscaled(w)
