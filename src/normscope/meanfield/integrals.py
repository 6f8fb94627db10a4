"""Expectations of functions of one or two normal variables.

Of a rectifier and its slope in closed form; of smooth functions by sums over equally spaced nodes.
All functions work element by element on arrays that broadcast. A normal variable is given by its
mean and standard deviation, a pair also by its correlation.

For a function that is analytic in a strip around the real axis, the trapezoidal sum against the
normal density converges geometrically in the spacing. It needs fewer nodes than Gauss-Hermite
quadrature once the standard deviation exceeds one, where the strip is narrow in units of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, owens_t

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

_SQRT_TWO_PI = float(np.sqrt(2 * np.pi))
_TINY = 1e-100


def normal_density(z: Array) -> Array:
    """Return the density of the standard normal distribution.

    >>> round(float(normal_density(np.array(0.0))), 4)
    0.3989
    """
    return np.asarray(np.exp(-0.5 * np.square(z)) / _SQRT_TWO_PI)


def both_below(h: Array, k: Array, correlation: Array) -> Array:
    r"""Return the probability that two standard normal variables lie below h and k.

    .. math:: \Phi_2(h, k; c) = \tfrac12 \Phi(h) + \tfrac12 \Phi(k)
        - T(h, a_h) - T(k, a_k) - \tfrac12 [hk < 0]

    Notation: T = Owen's function, a_h = (k/h - c) / sqrt(1 - c^2), a_k alike, c = correlation.

    Args:
        h: bound of the first variable.
        k: bound of the second.
        correlation: of the two, from -1 to 1.

    Returns:
        The probability.

    >>> round(float(both_below(np.array(0.0), np.array(0.0), np.array(0.5))), 12)  # a third
    0.333333333333
    """
    h, k, c = (np.asarray(v, dtype=np.float64) for v in np.broadcast_arrays(h, k, correlation))
    h, k = (np.where(np.abs(v) < _TINY, 0.0, v) for v in (h, k))  # so that products have signs
    at_origin = 0.25 + np.arcsin(np.clip(c, -1, 1)) / (2 * np.pi)
    if not (h.any() or k.any()):
        return np.asarray(at_origin)
    root = np.sqrt(np.maximum((1 - c) * (1 + c), 1e-300))
    with np.errstate(divide="ignore", invalid="ignore"):
        slope_h, slope_k = (k - c * h) / (h * root), (h - c * k) / (k * root)
    # T(0, a) = atan(a) / (2 pi), and a is infinite there with the sign of the numerator
    first = np.where(h == 0, 0.25 * np.sign(k), owens_t(h, np.nan_to_num(slope_h)))
    second = np.where(k == 0, 0.25 * np.sign(h), owens_t(k, np.nan_to_num(slope_k)))
    crossing = 0.5 * ((h * k < 0) | ((h * k == 0) & (h + k < 0)))
    value = 0.5 * (ndtr(h) + ndtr(k)) - first - second - crossing
    return np.where((h == 0) & (k == 0), at_origin, np.clip(value, 0.0, 1.0))


def rectified_mean(mean: Array, std: Array) -> Array:
    r"""Return the mean of the positive part of a normal variable.

    .. math:: E[x_+] = \mu \Phi(\mu/\sigma) + \sigma n(\mu/\sigma)

    Args:
        mean: of the variable.
        std: its standard deviation.

    Returns:
        The mean.

    >>> round(float(rectified_mean(np.array(0.0), np.array(1.0))), 4)  # 1 / sqrt(2 pi)
    0.3989
    """
    ratio = safe_ratio(mean, std)
    return np.asarray(mean * ndtr(ratio) + std * normal_density(ratio))


def rectified_product(means: tuple[Array, Array], stds: tuple[Array, Array], c: Array) -> Array:
    r"""Return the mean of the product of the positive parts of two normal variables.

    With zero means it is the arc-cosine kernel,
    :math:`\frac{\sigma_1\sigma_2}{2\pi}(\sqrt{1-c^2} + c\pi/2 + c \arcsin c)`.

    Reference: wei2018, Eq. (21). Notation: c = correlation.

    Args:
        means: of the two variables.
        stds: their standard deviations.
        c: their correlation.

    Returns:
        The mean of the product.

    >>> zero, one = np.array(0.0), np.array(1.0)
    >>> round(float(rectified_product((zero, zero), (one, one), zero)), 6)  # 1 / (2 pi)
    0.159155
    """
    (m1, m2), (s1, s2) = means, stds
    root = np.sqrt(np.maximum((1 - c) * (1 + c), 0.0))
    if not (np.any(m1) or np.any(m2)):
        return np.asarray(s1 * s2 / (2 * np.pi) * (root + c * (np.pi / 2 + np.arcsin(c))))
    h, k = safe_ratio(m1, s1), safe_ratio(m2, s2)
    safe = np.maximum(root, 1e-150)
    density = np.exp(-0.5 * (np.square(h) + np.square(safe_ratio(k - c * h, safe))))
    return np.asarray(
        (m1 * m2 + c * s1 * s2) * both_below(h, k, c)
        + s1 * m2 * normal_density(h) * ndtr((k - c * h) / safe)
        + s2 * m1 * normal_density(k) * ndtr((h - c * k) / safe)
        + s1 * s2 * root * density / (2 * np.pi)
    )


def safe_ratio(numerator: Array, denominator: Array) -> Array:
    """Return the ratio; where the denominator is 0, 0 or a very large number."""
    tiny = np.where(denominator == 0, 1e-150, denominator)
    return np.asarray(np.clip(numerator / tiny, -1e100, 1e100))


_NODES = np.linspace(-11.0, 11.0, 441)  # the density is 1e-26 of its maximum there
_WEIGHTS = normal_density(_NODES) * (_NODES[1] - _NODES[0])
_TERMS = 400  # at most; the series ends once its terms are negligible
_NEGLIGIBLE = 1e-15


def expectation(function: Function, mean: Array, std: Array) -> Array:
    """Return the mean of a smooth function of a normal variable.

    Args:
        function: works element by element.
        mean: of the variable.
        std: its standard deviation, of the same shape.

    Returns:
        An array of the same shape.

    >>> float(expectation(np.square, np.array(1.0), np.array(2.0)).round(12))
    5.0
    """
    return np.asarray(function(_nodes(mean, std)) @ _WEIGHTS)


def hermite_coefficients(function: Function, mean: Array, std: Array) -> Array:
    r"""Return a function's coefficients in normalized Hermite polynomials.

    .. math:: a_n = E[\phi(\mu + \sigma z) h_n(z)]

    Args:
        function: works element by element.
        mean: of the variable.
        std: its standard deviation, of the same shape.

    Returns:
        (terms, *shape), as many terms as are not negligible.

    >>> hermite_coefficients(np.square, np.array(0.0), np.array(1.0)).round(12)[:3]
    array([1.        , 0.        , 1.41421356])
    """
    values = function(_nodes(mean, std)) * _WEIGHTS
    total = np.maximum(np.square(function(_nodes(mean, std))) @ _WEIGHTS, 1e-300)
    found, covered = [], np.zeros_like(total)
    previous, present = np.zeros_like(_NODES), np.ones_like(_NODES)
    for order in range(_TERMS):
        found.append(np.asarray(values @ present))
        covered = covered + np.square(found[-1])
        if np.all(total - covered <= _NEGLIGIBLE * total):
            break
        raised = (_NODES * present - np.sqrt(order) * previous) / np.sqrt(order + 1)
        previous, present = present, raised
    return np.stack(found)


def series(first: Array, second: Array, correlation: Array, slope: bool = False) -> Array:
    r"""Return the mean product of two functions of correlated normals (Mehler's formula).

    .. math:: E[\phi(x)\psi(y)] = \sum_n a_n b_n c^n

    Its derivative with respect to the correlation is the mean of the product of the slopes times
    both standard deviations.

    Args:
        first: the coefficients a of one function, (terms, ...).
        second: the coefficients b of the other.
        correlation: c.
        slope: whether to sum the derivative, n c^(n-1), instead.

    Returns:
        The sums, of the shape that coefficients and correlation broadcast to.

    >>> a = hermite_coefficients(np.square, np.array(0.0), np.array(1.0))
    >>> float(series(a, a, np.array(0.5)).round(12))  # 1 + 2 c^2
    1.5
    """
    shape = np.broadcast_shapes(first.shape[1:], second.shape[1:], correlation.shape)
    total, power = np.zeros(shape), np.ones(shape)
    for order in range(1 if slope else 0, min(len(first), len(second))):
        total += (order if slope else 1) * first[order] * second[order] * power
        power *= correlation
    return total


def _nodes(mean: Array, std: Array) -> Array:
    return np.asarray(mean)[..., None] + np.asarray(std)[..., None] * _NODES
