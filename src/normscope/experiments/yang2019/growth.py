r"""How fast gradients grow in wide normalized networks, by theory: for any batch and activation.

In a wide net whose layers are linear, batch normalization, activation, the activations of a batch
come to a state where all pairs of samples look alike. A unit's centred inputs are then an isotropic
Gaussian vector in B - 1 dimensions, so that what the layer divides by and the direction u of the
normalized output are independent, u is uniform on the sphere, and the gradient from above, which is
without a part along 1, is isotropic too. Fact C.1 then gives the growth per layer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from normscope.errors import InputError
from normscope.registry import unknown_name

__all__ = ["ACTIVATIONS", "batch_growth", "layer_growth", "residual_growth", "spread"]

Array = npt.NDArray[np.float64]
_SAMPLES = 2_000_000  # numbers drawn for an average over the sphere
_NODES = 200


def _relu_slope(x: Array) -> Array:
    return (x > 0).astype(np.float64)


# each with its derivative
ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "linear": (lambda x: x, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0.0), _relu_slope),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
}


def batch_growth(activation: str, batch_size: int) -> float:
    r"""Growth of the squared gradient norm per layer, under batch normalization, width infinite.

    .. math:: \lambda(B) = \frac{B}{(B-1)(B-3)} \cdot \frac{E\left[(1-\frac2B) \sum \rho_i^2
        + \frac{1}{B^2} (\sum \rho_i)^2 - \sum \rho_i^2 u_i^2 + \frac1B (\sum \rho_i u_i)^2\right]}
        {q - p}

    with :math:`u` uniform on the unit sphere of the vectors without mean, :math:`\hat y = \sqrt B
    u`, :math:`\rho_i = \phi'(\hat y_i)`, :math:`q = E \phi(\hat y_1)^2`, :math:`p = E \phi(\hat
    y_1) \phi(\hat y_2)`. It is (B-2)/(B-3) for linear nets, falls to pi/(pi-1) with the batch for
    ReLU, and is infinite up to a batch of three: the inverse variance then has no mean.

    Reference: yang2019, for the limit; derived here for every batch. Closed for linear and ReLU;
    for tanh the averages over the sphere are taken over random points, always the same.

    Args:
        activation: linear, relu or tanh.
        batch_size: B, above 3.

    Returns:
        The factor per layer.

    Raises:
        InputError: if the batch is too small.
        UnknownNameError: if there is no such activation.

    >>> round(batch_growth("linear", 8), 4), round(batch_growth("relu", 10**9), 4)
    (1.2, 1.4669)
    """
    if batch_size < 4:
        raise InputError(f"the growth is finite for batches above 3, got {batch_size}.")
    trace, gap = _averages(activation, batch_size)
    return batch_size * trace / ((batch_size - 1) * (batch_size - 3) * gap)


def spread(activation: str, batch_size: int) -> float:
    """The share q - p of the activations' second moment that tells samples apart.

    >>> round(spread("linear", 5), 4)
    1.25
    """
    return _averages(activation, batch_size)[1]


def residual_growth(norm: str, activation: str, batch_size: int, depth: int) -> Array:
    r"""Growth per block of a residual net, x + W phi(N(x)), from the stem upwards.

    .. math:: 1 + \lambda \frac{a}{1 + l a}, \qquad a = q - p \text{ (batch)}, \quad a = q
        \text{ (layer)}

    The variance of x grows with every block l, and the branch's gradient falls with it: the product
    grows like a power of the depth, not exponentially.

    Args:
        norm: batch or layer.
        activation: linear, relu or tanh.
        batch_size: above 3; without influence for layer.
        depth: number of blocks.

    Returns:
        The factor of each block.
    """
    batch = norm == "batch"
    added = spread(activation, batch_size) if batch else _second_moment(activation)
    factor = batch_growth(activation, batch_size) if batch else layer_growth(activation)
    blocks = np.arange(depth, dtype=np.float64)
    factors: Array = 1.0 + factor * added / (1.0 + blocks * added)
    return factors


def layer_growth(activation: str) -> float:
    r"""Growth per layer under layer normalization, width infinite.

    .. math:: E[\phi'(x)^2] / E[\phi(x)^2], \qquad x \sim N(0, 1)

    Statistics over many units are as good as constant, so that nothing is taken from the gradient
    and nothing is added: 1 for linear and ReLU.

    Args:
        activation: linear, relu or tanh.

    Returns:
        The factor per layer.

    >>> round(layer_growth("linear"), 12)
    1.0
    """
    value, slope = _of(activation)
    if activation == "relu":
        return 1.0  # its slope jumps: no matter for quadrature
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return float((weights @ slope(nodes) ** 2) / (weights @ value(nodes) ** 2))


def _second_moment(activation: str) -> float:
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return float(weights @ _of(activation)[0](nodes) ** 2 / weights.sum())


@functools.cache
def _averages(activation: str, batch_size: int) -> tuple[float, float]:
    """The expectation in the numerator, and q - p."""
    value, slope = _of(activation)
    size = batch_size
    if activation == "linear":
        return size - 2.0, size / (size - 1)
    if activation == "relu":
        return _relu_averages(size)
    random = np.random.default_rng(size)
    points = random.standard_normal((max(200, _SAMPLES // size), size))
    points -= points.mean(1, keepdims=True)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    outputs, slopes = value(math.sqrt(size) * points), slope(math.sqrt(size) * points)
    squares = (slopes**2).sum(1)
    terms = (1 - 2 / size) * squares + slopes.sum(1) ** 2 / size**2
    terms += (slopes * points).sum(1) ** 2 / size - (slopes**2 * points**2).sum(1)
    second, total = (outputs**2).sum(1).mean(), (outputs.sum(1) ** 2).mean()
    pair = (total - second) / (size * (size - 1))
    return float(terms.mean()), float(second / size - pair)


def _relu_averages(size: int) -> tuple[float, float]:
    """By orthant probabilities and the arc-cosine kernel at the correlation -1 / (B - 1)."""
    correlation = -1 / (size - 1)
    angle = math.acos(correlation)
    pair = (math.sqrt(1 - correlation**2) + correlation * (math.pi - angle)) / (2 * math.pi)
    both = 0.25 + math.asin(correlation) / (2 * math.pi)
    positive, positive_squared = size / 2, size / 2 + size * (size - 1) * both
    summed = (0.5 + (size - 1) * pair) / size
    trace = (1 - 2 / size) * positive + positive_squared / size**2 - 0.5 + summed
    return trace, 0.5 - pair


def _of(activation: str) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    if activation not in ACTIVATIONS:
        raise unknown_name("activation of the growth theory", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]
