"""Ordinary least squares by five methods, with the rate that normalization is proved to have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from normscope.decoupled.least_squares_methods import METHODS, Quadratic, States
from normscope.decoupled.least_squares_path import LeastSquaresPath
from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.registry import unknown_name

__all__ = ["ordinary_least_squares"]

Array = NDArray[np.float64]


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
    r"""The path of an optimizer on least squares, and the bound of the normalized one beside it.

    .. math::
        f(\tilde w) = 2 u^T \tilde w + \tilde w^T S \tilde w, \quad S = E[xx^T],\; u = E[-yx];
        \qquad \rho(w) = \min_\gamma f(\gamma w / |w|_S) = -\frac{(u^T w)^2}{w^T S w}

    .. math:: \rho(w_t) - \rho^* \le (1 - \mu/L)^{2t} (\rho(w_0) - \rho^*)

    The bound is claimed for "gdnp". For "gd" (at its own learning rate 1/(2L)) and "cg" the same
    factor holds for the whole objective, ``.excess``; for "agd" and "bn_gd" nothing is claimed.

    The path is computed about the minimizer, in the eigenbasis of S: the same iterates, but gaps
    keep their relative accuracy far below the rounding of the objective itself.

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization, whose
    objective has a misprint: gamma squared is a term of its own. Notation: mu and L are the
    smallest and largest eigenvalue of S that are not zero.

    Args:
        X: samples (samples, features), with ``y``; not centred here.
        y: targets (samples,).
        S: second moment (features, features), with ``u``, in place of samples.
        u: E[-y x] (features,).
        method: "gd" on w_tilde; "bn_gd" on (w, gamma) with one constant rate; "gdnp" with the
            step w'Sw/(2 L \|rho\|) and the best length; "agd", Nesterov's for strongly convex
            functions; "cg", conjugate gradients.
        steps: how many to take.
        start: first weights; None for -u, where gradient descent from zero goes first.
        learning_rate: of "gd", "agd" (None: 1/(2L)) and "bn_gd" (None: 1/(2 max(L, 1)), the
            largest that both its curvatures stand at the start); the others take none.

    Returns:
        The points before each step with their gaps, and ``.coef`` after the last. A path that
        diverges ends in infinite numbers, or nan.

    Raises:
        InputError: for input that leaves nothing to optimize (u = 0, or a start with u'w = 0 for a
            normalized method), for u outside the range of S, or arguments out of their range.
        ArgumentTypeError: for a sparse matrix.
        UnknownNameError: for a method that is not among them.

    >>> path = ordinary_least_squares(S=np.diag([1.0, 4.0]), u=[-1.0, -4.0], steps=30)
    >>> bool((path.gap <= path.bound).all()), path.coef.round(3)
    (True, array([1., 1.]))
    """
    _check(method, steps, learning_rate)
    eigenvalues, basis, turned = _spectrum(*_given(X, y, S, u))
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
    """The states in the original coordinates; the last is only the result."""
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


def _given(inputs: Any, targets: Any, moment: Any, mean: Any) -> tuple[Array, Array, bool]:
    """A matrix, u, and whether the matrix holds samples."""
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
            f"{name} must be finite, got {wrong} entries that are nan or infinite; leave out or "
            "fill in those samples."
        )


def _vector(values: Any, size: int, name: str) -> Array:
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape != (size,):
        raise ShapeError(f"{name} must be {size} numbers, got shape {vector.shape}.")
    _check_finite(name, vector)
    return vector


def _spectrum(matrix: Array, mean: Array, samples: bool) -> tuple[Array, Array, Array]:
    """Eigenvalues of S that are not zero, their basis, and u in that basis."""
    if samples:  # singular values of the samples: twice the digits of the eigenvalues of S
        _, roots, rows = np.linalg.svd(matrix, full_matrices=False)
        eigenvalues, basis = roots[::-1] ** 2, rows[::-1].T
        kept = roots[::-1] > roots[0] * max(matrix.shape) * np.finfo(float).eps
    else:
        eigenvalues, basis = np.linalg.eigh(matrix)
        rounding = eigenvalues[-1] * len(matrix) * np.finfo(float).eps
        if eigenvalues[0] < -rounding:
            raise InputError(f"S must not have negative eigenvalues, got {eigenvalues[0]:g}.")
        kept = eigenvalues > rounding
    turned = mean @ basis
    if not np.any(mean) or not kept.any() or not np.any(turned[kept]):
        raise InputError(
            "u = E[-yx] is zero: every direction has rho = 0 and the best weights are zero; "
            "there is nothing to optimize."
        )
    if np.linalg.norm(mean - basis[:, kept] @ turned[kept]) > 1e-8 * np.linalg.norm(mean):
        raise InputError("u lies outside the range of S: the objective has no minimum.")
    return eigenvalues[kept], basis[:, kept], turned[kept]
