"""Ordinary least squares by five methods, with the rate proved for normalization.

In the eigenbasis of S the gradient at w* + e is 2 lambda e. Each method is a recursion of the error
e: it gives the same path as one of w, without losing the error to the rounding of w.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from normscope.decoupled.paths import LeastSquaresPath
from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.registry import unknown_name

Array = NDArray[np.float64]
States = Iterator[tuple[Array, float]]

_EVEN = 10.0  # ratio of column sizes up to which eigenvalues of S are accurate as they are


def ordinary_least_squares(
    X: Any = None,  # noqa: N803  # the name that scikit-learn users expect
    y: Any = None,
    *,
    S: Any = None,  # noqa: N803  # the paper's name, a contract of the public surface
    u: Any = None,
    method: str = "gdnp",
    steps: int = 100,
    start: Sequence[float] | Array | None = None,
    learning_rate: float | None = None,
) -> LeastSquaresPath:
    r"""Return the path of an optimizer on least squares, with the bound of the normalized one.

    .. math::
        f(\tilde w) = 2 u^T \tilde w + \tilde w^T S \tilde w, \quad S = E[xx^T],\; u = E[-yx];
        \qquad \rho(w) = \min_\gamma f(\gamma w / |w|_S) = -\frac{(u^T w)^2}{w^T S w}

    .. math:: \rho(w_t) - \rho^* \le (1 - \mu/L)^{2t} (\rho(w_0) - \rho^*)

    The bound is claimed for "gdnp". For "gd" (at its default learning rate 1/(2L)) and "cg" the
    same factor holds for the whole objective, ``.excess``; for "agd" and "bn_gd" nothing is
    claimed.

    The path is computed relative to the minimizer, in the eigenbasis of S, so that gaps keep their
    relative accuracy far below the rounding error of the objective.

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization, whose
    objective has a misprint: gamma squared is a term of its own. Notation: mu and L are the
    smallest and largest eigenvalue of S that are not zero.

    Args:
        X: samples (samples, features), with ``y``; not centred here.
        y: targets (samples,).
        S: second moment (features, features), with ``u``, instead of samples.
        u: E[-y x] (features,).
        method: "gd" on w_tilde; "bn_gd" on (w, gamma) with one constant rate; "gdnp" with the
            step w'Sw/(2 L \|rho\|) and the best length; "agd", Nesterov's for strongly convex
            functions; "cg", conjugate gradients.
        steps: number of steps.
        start: first weights; None for -u, the first step of gradient descent from zero.
        learning_rate: of "gd", "agd" (None: 1/(2L)) and "bn_gd" (None: 1/(2 max(L, 1)), the
            largest that is stable for both its curvatures at the start); the others take none.

    Returns:
        The points before each step with their gaps, and ``.coef`` after the last. A path that
        diverges ends in infinity or NaN.

    Raises:
        InputError: if there is nothing to optimize (u = 0, or a start with u'w = 0 for a
            normalized method), for u outside the range of S, for columns too different in size,
            or arguments out of range.
        ArgumentTypeError: for a sparse matrix.
        UnknownNameError: for an unknown method.

    >>> path = ordinary_least_squares(S=np.diag([1.0, 4.0]), u=[-1.0, -4.0], steps=30)
    >>> bool((path.gap <= path.bound).all()), path.coef.round(3)
    (True, array([1., 1.]))
    """
    _check(method, steps, learning_rate)
    eigenvalues, basis, turned = _spectrum(*_moments(X, y, S, u))
    first = -turned if start is None else _vector(start, len(basis), "start") @ basis
    quadratic = Quadratic(eigenvalues, -turned / eigenvalues)
    if method in ("gdnp", "bn_gd") and quadratic.overlap(first) == 0:
        raise InputError(
            "the start has u'w = 0, where rho has no slope; choose another start, or None for -u."
        )
    states = METHODS[method](quadratic, first, steps, learning_rate)
    return _path(quadratic, states, basis, method)


def _check(method: str, steps: int, learning_rate: float | None) -> None:
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if steps < 1 or (learning_rate is not None and not 0 < learning_rate < np.inf):
        raise InputError(
            f"steps must be at least 1 and learning_rate positive, got {steps} and {learning_rate}."
        )
    if learning_rate is not None and method in ("gdnp", "cg"):
        raise InputError(
            f"method {method!r} chooses its own steps and takes no learning_rate, got "
            f"{learning_rate:g}; leave it out, or take 'gd', 'bn_gd' or 'agd'."
        )


def _path(quadratic: Quadratic, states: States, basis: Array, method: str) -> LeastSquaresPath:
    """Return the states in the original coordinates; the last is the result."""
    with np.errstate(over="ignore", invalid="ignore"):  # divergence is an outcome
        errors, excess = zip(*states, strict=True)
        gap = np.array([quadratic.gap(error) for error in errors[:-1]])
        points = (np.array(errors) + quadratic.minimizer) @ basis.T
    smallest, largest = quadratic.ends
    return LeastSquaresPath(
        method=method,
        rho=quadratic.best + gap,
        gap=gap,
        bound=(1 - smallest / largest) ** (2.0 * np.arange(len(gap))) * gap[0],
        excess=np.array(excess[:-1]),
        w=points[:-1],
        coef=points[-1],
        best=quadratic.best,
        smallest=smallest,
        largest=largest,
    )


def _moments(inputs: Any, targets: Any, moment: Any, mean: Any) -> tuple[Array, Array, bool]:
    """Return a matrix, u, and whether the matrix holds samples."""
    if (inputs is None) != (targets is None) or (moment is None) != (mean is None):
        raise InputError("give X with y, or S with u.")
    if (inputs is None) == (moment is None):
        raise InputError("give either X and y, or S and u: one of the two.")
    matrix = _matrix(*(("S", moment) if inputs is None else ("X", inputs)))
    if inputs is not None:
        vector = _vector(targets, len(matrix), "y")
        return matrix / np.sqrt(len(matrix)), -matrix.T @ vector / len(matrix), True
    if matrix.shape[0] != matrix.shape[1] or not np.allclose(matrix, matrix.T, rtol=1e-8, atol=0):
        raise ShapeError(f"S must be square and symmetric, got shape {matrix.shape}.")
    return matrix, _vector(mean, len(matrix), "u"), False


def _matrix(name: str, values: Any) -> Array:
    if sparse.issparse(values):
        raise ArgumentTypeError(
            f"{name} must be a dense array, got a sparse one of shape {values.shape}; pass "
            f"{name}.toarray(), or S = X'X/n and u = -X'y/n as arrays."
        )
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ShapeError(f"{name} must be a matrix with entries, got shape {matrix.shape}.")
    _check_finite(name, matrix)
    return matrix


def _check_finite(name: str, values: Array) -> None:
    wrong = int(np.size(values) - np.isfinite(values).sum())
    if wrong:
        raise InputError(
            f"{name} must be finite, got {wrong} entries that are NaN or infinite; drop or fill "
            "those samples."
        )


def _vector(values: Any, size: int, name: str) -> Array:
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape != (size,):
        raise ShapeError(f"{name} must be {size} numbers, got shape {vector.shape}.")
    _check_finite(name, vector)
    return vector


def _spectrum(matrix: Array, mean: Array, samples: bool) -> tuple[Array, Array, Array]:
    """Return the nonzero eigenvalues of S, their basis, and u in that basis."""
    if samples:
        sizes = np.linalg.norm(matrix, axis=0)
        eigenvalues, basis, kept = _singular(matrix)
    else:
        sizes = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
        eigenvalues, basis, kept = _eigen(matrix)
        if sizes.max() > _EVEN * min(sizes[sizes > 0], default=np.inf):
            eigenvalues, basis, kept = _singular(_root(matrix, sizes))
    columns = matrix / np.where(sizes > 0, sizes, 1.0)
    even = columns if samples else columns / np.where(sizes > 0, sizes, 1.0)[:, None]
    if kept.sum() < (_singular(even) if samples else _eigen(even))[2].sum():
        raise InputError(
            f"the columns differ too much in size, from {sizes[sizes > 0].min():.1g} to "
            f"{sizes.max():.1g}, to be told from rounding errors; scale them to about one size."
        )
    turned = mean @ basis
    if not np.any(mean) or not kept.any() or not np.any(turned[kept]):
        raise InputError(
            "u = E[-yx] is zero: every direction has rho = 0 and the best weights are zero; "
            "there is nothing to optimize."
        )
    if np.linalg.norm(mean - basis[:, kept] @ turned[kept]) > 1e-8 * np.linalg.norm(mean):
        raise InputError("u lies outside the range of S: the objective has no minimum.")
    return eigenvalues[kept], basis[:, kept], turned[kept]


Spectrum = tuple[Array, Array, NDArray[np.bool_]]  # ascending; basis; whether not zero


def _singular(root: Array) -> Spectrum:
    """Return the spectrum of R'R; singular values have twice the digits of its eigenvalues."""
    _, roots, rows = np.linalg.svd(root, full_matrices=False)
    kept = roots[::-1] > roots[0] * max(root.shape) * np.finfo(float).eps
    return roots[::-1] ** 2, rows[::-1].T, kept


def _eigen(matrix: Array) -> Spectrum:
    """Return the spectrum of a symmetric matrix that must not have negative eigenvalues."""
    eigenvalues, basis = np.linalg.eigh(matrix)
    rounding = eigenvalues[-1] * len(matrix) * np.finfo(float).eps
    if eigenvalues[0] < -rounding:
        raise InputError(f"S must not have negative eigenvalues, got {eigenvalues[0]:g}.")
    return eigenvalues, basis, eigenvalues > rounding


def _root(matrix: Array, sizes: Array) -> Array:
    """Return R with R'R = S, without losing small columns beside large ones."""
    safe = np.where(sizes > 0, sizes, 1.0)
    eigenvalues, basis, _ = _eigen(matrix / safe / safe[:, None])
    return np.asarray(np.sqrt(np.maximum(eigenvalues, 0.0))[:, None] * basis.T * safe)


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
        """Return |v|_S^2."""
        return float(self.eigenvalues @ vector**2)

    def overlap(self, vector: Array) -> float:
        """Return the S product of minimizer and vector, -u'v."""
        return float((self.eigenvalues * self.minimizer) @ vector)

    def gap(self, error: Array) -> float:
        """Return rho(w* + e) - rho*, the excess at the best length."""
        across = error + (self.overlap(error) / self.best) * self.minimizer
        whole = self.square(self.minimizer + error)
        return self.square(across) * -self.best / whole if whole > 0 else -self.best

    def at_best_length(self, error: Array) -> tuple[Array, float]:
        """Return the error at the best length, and the factor of the length."""
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

    With that step it is gradient descent at the rate 1/(2L), with the best length after each step.
    """
    del learning_rate
    factor = 1 - quadratic.eigenvalues / quadratic.ends[1]
    error, _ = quadratic.at_best_length(start - quadratic.minimizer)
    for _ in range(steps + 1):
        yield error, quadratic.square(error)
        error, _ = quadratic.at_best_length(factor * error)


def _normalized_descent(
    quadratic: Quadratic, start: Array, steps: int, learning_rate: float | None
) -> States:
    """Gradient descent on w and gamma together, as in a network with batch normalization.

    Notation: w = c (w* + e) with e at the best length a, and gamma = a + d. If c is negative, the
    signs of both w and gamma are flipped, which leaves the path unchanged.
    """
    rate = 1 / (2 * max(quadratic.ends[1], 1.0)) if learning_rate is None else learning_rate
    error, factor = quadratic.at_best_length(start - quadratic.minimizer)
    size = 1 / factor
    length = float(np.sqrt(quadratic.square(quadratic.minimizer + error)))
    off = size * length - length  # the network starts at the start itself
    for _ in range(steps + 1):
        point = quadratic.minimizer + error
        yield off / length * point + error, off**2 + quadratic.square(error)
        gamma = length + off
        pull = 2 * rate * gamma / (size**2 * length)
        error, factor = quadratic.at_best_length(error - pull * quadratic.eigenvalues * error)
        size, before = size / factor, length
        length = float(np.sqrt(quadratic.square(quadratic.minimizer + error)))
        off = (1 - 2 * rate) * off
        # if w crosses u'w = 0, gamma changes its sign too
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
    """Conjugate gradients; they stay at the minimum once the residual is zero."""
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
