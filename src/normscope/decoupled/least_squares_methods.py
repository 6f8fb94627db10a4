"""The methods on least squares, each as a recursion of the error about the minimizer.

In the eigenbasis of S the gradient of the objective at w* + e is 2 lambda e. A recursion of e is
the same path as one of w, but does not lose the error in the rounding of w.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["METHODS", "Quadratic", "States"]

Array = NDArray[np.float64]
States = Iterator[tuple[Array, float]]


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The objective 2 u'w + w'Sw in the eigenbasis of S.

    Args:
        eigenvalues: ascending, all positive.
        minimizer: -S^{-1} u.
    """

    eigenvalues: Array
    minimizer: Array

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest eigenvalue."""
        return float(self.eigenvalues[0]), float(self.eigenvalues[-1])

    @cached_property
    def best(self) -> float:
        """rho* = -u'S^{-1}u, the least value."""
        return -self.square(self.minimizer)

    def square(self, vector: Array) -> float:
        """|v|_S^2."""
        return float(self.eigenvalues @ vector**2)

    def overlap(self, vector: Array) -> float:
        """The product of the minimizer and the vector in S, -u'v."""
        return float((self.eigenvalues * self.minimizer) @ vector)

    def gap(self, error: Array) -> float:
        """rho(w* + e) - rho*: what remains when only the length is chosen best."""
        across = error + (self.overlap(error) / self.best) * self.minimizer
        whole = self.square(self.minimizer + error)
        return self.square(across) * -self.best / whole if whole > 0 else -self.best

    def lengthened(self, error: Array) -> tuple[Array, float]:
        """The error after the best change of length, and the factor of that change."""
        point = self.minimizer + error
        change = -float((self.eigenvalues * error) @ point) / self.square(point)
        return change * self.minimizer + (1 + change) * error, 1 + change


def _gradient_descent(
    quadratic: Quadratic, start: Array, steps: int, learning_rate: float | None
) -> States:
    """Plain gradient descent on the weights."""
    rate = 1 / (2 * quadratic.ends[1]) if learning_rate is None else learning_rate
    factor = 1 - 2 * rate * quadratic.eigenvalues
    error = start - quadratic.minimizer
    for _ in range(steps + 1):
        yield error, quadratic.square(error)
        error = factor * error


def _gdnp(quadratic: Quadratic, start: Array, steps: int, learning_rate: float | None) -> States:
    """Gradient descent on rho with the article's step, at the best length.

    With that step it is gradient descent at the rate 1/(2L) whose length is made best each time.
    """
    del learning_rate
    factor = 1 - quadratic.eigenvalues / quadratic.ends[1]
    error, _ = quadratic.lengthened(start - quadratic.minimizer)
    for _ in range(steps + 1):
        yield error, quadratic.square(error)
        error, _ = quadratic.lengthened(factor * error)


def _normalized_descent(
    quadratic: Quadratic, start: Array, steps: int, learning_rate: float | None
) -> States:
    """Gradient descent on w and gamma together, as a network with batch normalization does it.

    Notation: w = c (w* + e) with e at the best length a, and gamma = a + d. Where c is negative
    the signs of w and of gamma are both turned, which leaves the path as it is.
    """
    rate = 1 / (2 * max(quadratic.ends[1], 1.0)) if learning_rate is None else learning_rate
    error, factor = quadratic.lengthened(start - quadratic.minimizer)
    size = 1 / factor
    length = float(np.sqrt(quadratic.square(quadratic.minimizer + error)))
    off = size * length - length  # the network starts at the start itself
    for _ in range(steps + 1):
        point = quadratic.minimizer + error
        yield off / length * point + error, off**2 + quadratic.square(error)
        gamma = length + off
        pull = 2 * rate * gamma / (size**2 * length)
        error, factor = quadratic.lengthened(error - pull * quadratic.eigenvalues * error)
        size, before = size / factor, length
        length = float(np.sqrt(quadratic.square(quadratic.minimizer + error)))
        off = (1 - 2 * rate) * off
        # where w went over to the other side of u'w = 0, gamma turns with it
        off = off + before - length if factor > 0 else -(off + before) - length


def _accelerated(
    quadratic: Quadratic, start: Array, steps: int, learning_rate: float | None
) -> States:
    """Nesterov's method for strongly convex functions."""
    smallest, largest = quadratic.ends
    rate = 1 / (2 * largest) if learning_rate is None else learning_rate
    root = float(np.sqrt(largest / smallest))
    momentum = (root - 1) / (root + 1)
    factor = 1 - 2 * rate * quadratic.eigenvalues
    error = before = start - quadratic.minimizer
    for _ in range(steps + 1):
        yield error, quadratic.square(error)
        error, before = factor * (error + momentum * (error - before)), error


def _conjugate_gradients(
    quadratic: Quadratic, start: Array, steps: int, learning_rate: float | None
) -> States:
    """Conjugate gradients; it stands still once the residual is zero."""
    del learning_rate
    error = start - quadratic.minimizer
    residual = -quadratic.eigenvalues * error
    search = residual.copy()
    for _ in range(steps + 1):
        yield error, quadratic.square(error)
        power, curvature = float(residual @ residual), quadratic.square(search)
        if power == 0 or curvature == 0:
            continue
        error = error + (power / curvature) * search
        residual = -quadratic.eigenvalues * error
        search = residual + (float(residual @ residual) / power) * search


Method = Callable[[Quadratic, Array, int, float | None], States]

METHODS: dict[str, Method] = {
    "gd": _gradient_descent,
    "bn_gd": _normalized_descent,
    "gdnp": _gdnp,
    "agd": _accelerated,
    "cg": _conjugate_gradients,
}
