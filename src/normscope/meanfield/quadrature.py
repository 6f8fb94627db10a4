"""Expectations of smooth functions over normal variables, by sums over equally spaced nodes.

For a function that is analytic in a strip around the real axis, the trapezoidal sum against the
normal density converges geometrically in the spacing, and needs fewer nodes than Gauss-Hermite
quadrature once the standard deviation exceeds one (the strip becomes narrow in units of it).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from normscope.meanfield.gaussian_integrals import Array, normal_density

__all__ = ["expectation", "hermite_coefficients", "series"]

Function = Callable[[Array], Array]

_NODES = np.linspace(-11.0, 11.0, 441)  # the density falls to 1e-26 of its height there
_WEIGHTS = normal_density(_NODES) * (_NODES[1] - _NODES[0])
_TERMS = 400  # at most; the series ends where its terms have become negligible
_NEGLIGIBLE = 1e-15


def expectation(function: Function, mean: Array, std: Array) -> Array:
    """Mean of a smooth function of a normal variable.

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
    r"""Coefficients of a function of a normal variable in normalised Hermite polynomials.

    .. math:: a_n = E[\phi(\mu + \sigma z) h_n(z)]

    Args:
        function: works element by element.
        mean: of the variable.
        std: its standard deviation, of the same shape.

    Returns:
        (terms, *shape), as many terms as matter.

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
    r"""Mean of a product of two functions of correlated normal variables (Mehler's formula).

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
