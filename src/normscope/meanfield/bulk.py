r"""The largest eigenvalue that does not come from the mean gradient.

Two random-matrix effects, both checked by simulation (docs/meanfield.md):

*Several outputs.* Layers below the head are shared by all outputs. The mean gradients of C outputs
are random vectors that have passed k layers of n channels; the top eigenvalue of their Gram matrix
exceeds their mean square by the upper edge of a product of k Wishart matrices.

*Exploding gradients.* In a deep net with BatchNorm the gradients of different samples become
orthogonal while they grow, so each sample has eigenvalues of its own, of size
:math:`|\nabla f|^2 / m`, and the largest is that of the luckiest sample: the edge of a product of
k Wishart matrices, in which each layer's slopes leave only n / kurtosis units, times the largest of
m log-normal variables, since the number of active units varies from sample to sample.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from normscope.meanfield.gaussian_integrals import Array

__all__ = ["extreme_normal", "finite_outputs", "product_edge", "sample_factor"]

_TRACY_WIDOM_MEAN = 1.2065  # of the orthogonal ensemble, below the edge


def product_edge(ratio: Array, layers: Array) -> Array:
    r"""Upper edge of the spectrum of a product of Wishart matrices of mean one.

    .. math:: \min_{w > 0} (1 + 1/w) (1 + c w / k)^k

    For k = 1 it is Marchenko and Pastur's :math:`(1 + \sqrt{c})^2`.

    Notation: c = ratio, k = layers.

    Args:
        ratio: size of the matrix over the width, summed over the layers.
        layers: how many factors.

    Returns:
        The edge, 1 where there are no factors.

    >>> float(product_edge(np.array(0.25), np.array(1.0)).round(9))
    2.25
    """
    ratio, layers = (np.asarray(v, dtype=float) for v in np.broadcast_arrays(ratio, layers))
    c, k = np.maximum(ratio, 1e-12), np.maximum(layers, 1.0)
    # the logarithm is stationary where c w (1 + w) = 1 + c w / k, a quadratic in w
    linear = c * (1 - 1 / k)
    w = (-linear + np.sqrt(linear**2 + 4 * c)) / (2 * c)
    edge = (1 + 1 / w) * np.exp(k * np.log1p(c * w / k))
    return np.where((ratio <= 0) | (layers <= 0), 1.0, edge)


def finite_outputs(outputs: int) -> float:
    """The number of outputs that puts the edge where the mean top eigenvalue of a few is.

    >>> round(finite_outputs(10), 2)
    7.57
    """
    shrunk = 1 - 0.5 * _TRACY_WIDOM_MEAN * outputs ** (-2 / 3)
    return float(outputs * shrunk**2)


def extreme_normal(count: float) -> float:
    """Expected largest of so many standard normal variables.

    >>> round(extreme_normal(300), 2)
    2.86
    """
    return float(ndtri(0.5264 ** (1 / count))) if count > 1 else 0.0


def sample_factor(path: Array, outputs: int, batch_size: float) -> Array:
    """Largest eigenvalue of the luckiest sample over its mean squared gradient, (settings,).

    Args:
        path: what the gradients have passed (:class:`normscope.meanfield.field.Signal`).
        outputs: of the network.
        batch_size: samples to choose from.

    Returns:
        The factor, at least about one.
    """
    edge = product_edge(path[:, 2] * outputs, path[:, 1])
    variance = path[:, 3]
    largest = np.exp(extreme_normal(batch_size) * np.sqrt(variance) - variance / 2)
    return np.asarray(edge * np.maximum(largest, 1.0))
