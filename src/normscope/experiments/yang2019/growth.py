"""Growth of gradients with depth: the networks, their measurement and the expected rates.

Settings are validated before anything is measured.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.layers import normalization
from normscope.models.initialization import meanfield
from normscope.models.parts import activation_layers, linear
from normscope.registry import unknown_name


def integer(name: str, value: Any, at_least: int) -> int:
    """Return a setting as an integer.

    Raises:
        InputError: if it is not an integer, or too small.

    >>> integer("depth", 8, at_least=4)
    8
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
        raise InputError(f"{name} must be an integer of at least {at_least}, got {value!r}.")
    return int(value)


def integers(name: str, values: Sequence[Any], at_least: int) -> tuple[int, ...]:
    """Return distinct integers in increasing order.

    >>> integers("depths", [20, 10], at_least=2)
    (10, 20)
    """
    each = f"each of {name}"
    return tuple(sorted(integer(each, value, at_least) for value in distinct(name, values)))


def positive_numbers(name: str, values: Sequence[Any]) -> tuple[float, ...]:
    """Return distinct positive numbers in increasing order.

    Raises:
        InputError: if one of them is not a positive number.
    """
    for value in distinct(name, values):
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise InputError(f"each of {name} must be a number above zero, got {value!r}.")
    return tuple(sorted(float(value) for value in values))


def distinct(name: str, values: Sequence[Any]) -> Sequence[Any]:
    """Return the values of a setting.

    Raises:
        InputError: if there are none, or two are equal.
    """
    if not len(values):
        raise InputError(f"{name} must name at least one, got none.")
    if any(value in values[:place] for place, value in enumerate(values)):
        raise InputError(f"{name} must be different values, got {list(values)}.")
    return values


# normalization, and whether there are skip connections
ARCHITECTURES = {
    "batch": ("batch", False),
    "batch, skip": ("batch", True),
    "layer": ("layer", False),
    "layer, skip": ("layer", True),
}
WEIGHT_VARIANCE = 2.0


class Stack(nn.Module):
    r"""A stem, equal blocks, and a linear head.

    A plain block is :math:`\phi(N(Wx))`, a residual one :math:`x + W\phi(N(x))`; after residual
    blocks one more normalization and activation, as in pre-activation nets.

    Reference: yang2019; he2016 for the residual blocks. Notation: N = normalization.

    Args:
        architecture: a name of ``ARCHITECTURES``.
        inputs: features.
        outputs: of the head.
        depth: number of blocks.
        width: units.
        activation: linear, relu or tanh.
        seed: of the weights.

    >>> Stack("batch, skip", 5, 2, depth=3, width=4)(torch.ones(6, 5)).shape
    torch.Size([6, 2])
    """

    def __init__(
        self,
        architecture: str,
        inputs: int,
        outputs: int,
        *,
        depth: int,
        width: int,
        activation: str = "relu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        norm, self.residual = ARCHITECTURES[architecture]
        self.flatten = nn.Flatten()
        self.stem = linear(inputs, width, bias=False)

        def normalized() -> list[nn.Module]:
            return [normalization(norm, width, 0), *activation_layers(activation)]

        product = partial(linear, width, width, bias=False)
        if self.residual:
            blocks = [nn.Sequential(*normalized(), product()) for _ in range(depth)]
            self.last = nn.Sequential(*normalized())
        else:
            # the stem is the first block's product
            blocks = [nn.Sequential(*normalized())]
            blocks += [nn.Sequential(product(), *normalized()) for _ in range(depth - 1)]
            self.last = nn.Sequential()
        self.blocks = nn.ModuleList(blocks)
        self.head = linear(width, outputs, bias=False)
        meanfield(self, torch.Generator().manual_seed(seed), sigma_w2=WEIGHT_VARIANCE, sigma_b2=0.0)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs, (batch, outputs)."""
        x = self.stem(self.flatten(x))
        for block in self.blocks:
            x = x + block(x) if self.residual else block(x)
        result: Tensor = self.head(self.last(x))
        return result


def squared_gradients(network: Stack, inputs: Tensor, seed: int) -> npt.NDArray[np.float64]:
    """The squared norm of a random output's gradient by each block's output, from the stem up.

    Args:
        network: in training mode; its parameters get no gradients.
        inputs: a batch.
        seed: of the random direction in the outputs.

    Returns:
        One number per block.
    """
    network.requires_grad_(False)
    outputs: list[Tensor] = []
    x = network.stem(network.flatten(inputs)).requires_grad_()
    for block in network.blocks:
        x = x + block(x) if network.residual else block(x)
        outputs.append(x)
    final = network.head(network.last(x))
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(final.shape, generator=generator, dtype=final.dtype)
    gradients = torch.autograd.grad(final, outputs, direction)
    return np.array([float(each.double().square().sum()) for each in gradients])


Array = npt.NDArray[np.float64]
_SAMPLES = 2_000_000  # numbers drawn for an average over the sphere
_NODES = 200


# each with its derivative
ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "linear": (lambda x: x, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0.0), lambda x: (x > 0).astype(np.float64)),
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
    if norm == "batch":
        factor, added = batch_growth(activation, batch_size), _averages(activation, batch_size)[1]
    else:
        factor, added = layer_growth(activation), _second_moment(activation)
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
