"""Networks described by their sizes alone, without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from normscope.errors import InputError
from normscope.meanfield.activations import Activation
from normscope.meanfield.activations import activation as activation_of
from normscope.meanfield.gaussian_integrals import Array
from normscope.meanfield.graph import INPUT, Graph, Node
from normscope.meanfield.norms import BatchNorm, SampleNorm
from normscope.meanfield.operations import Operation
from normscope.meanfield.pointwise import Nonlinearity
from normscope.meanfield.pooling import AveragePool, Flatten
from normscope.meanfield.weighted import Convolution, Linear
from normscope.meanfield.windows import Window
from normscope.registry import unknown_name

__all__ = ["chain", "convolutional_specification", "fully_connected_specification"]

Choice = str | Activation | Callable[[Array], Array]

NORMS: dict[str, Callable[..., Operation] | None] = {
    "none": None,
    "batch": BatchNorm,
    "layer": SampleNorm,
    "group": SampleNorm,
}
HEADS = ("flatten", "average")


def chain(operations: Sequence[tuple[str, Operation]], shape: Sequence[int]) -> Graph:
    """A graph in which each operation takes what the last one gave.

    Args:
        operations: name and operation, in order.
        shape: of one input, without the batch.

    Returns:
        The graph.
    """
    nodes = (
        Node(name, operation, (INPUT if index == 0 else index - 1,))
        for index, (name, operation) in enumerate(operations)
    )
    return Graph(tuple(nodes), tuple(shape))


def fully_connected_specification(
    widths: Sequence[int] = (784, 1000, 1000, 1000, 10),
    norm: str = "batch",
    activation: Choice = "relu",
    weight_variance: float = 2.0,
    bias_variance: float = 0.5,
    gamma: float | Sequence[float] = 1.0,
    beta: float | Sequence[float] = 0.0,
) -> Graph:
    """A fully connected network: linear, normalization, activation; the last layer linear.

    Reference: wei2018, Section 4.

    Args:
        widths: inputs, hidden layers, outputs.
        norm: none, batch or layer.
        activation: by name, or a smooth function of arrays.
        weight_variance: variance of a weight times the inputs of a unit.
        bias_variance: variance of a bias.
        gamma: scale of the normalization, one number or one for each hidden layer.
        beta: its shift, likewise.

    Returns:
        The graph.

    >>> len(fully_connected_specification((784, 1000, 10)).nodes)
    4
    """
    hidden = len(widths) - 2
    scales, shifts = per_layer("gamma", gamma, hidden), per_layer("beta", beta, hidden)
    parts: list[tuple[str, Operation]] = []
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        parts.append(
            (f"linear{layer + 1}", Linear(inputs, outputs, weight_variance, bias_variance))
        )
        if layer < hidden:
            parts += _norm_and_activation(layer + 1, norm, scales[layer], shifts[layer], activation)
    return chain(parts, widths[:1])


def convolutional_specification(
    input_shape: Sequence[int] = (3, 32, 32),
    channels: Sequence[int] = (30, 60, 90),
    outputs: int = 10,
    kernel: int = 3,
    stride: int = 2,
    padding: int = 0,
    head: str = "flatten",
    norm: str = "batch",
    activation: Choice = "relu",
    weight_variance: float = 2.0,
    bias_variance: float = 0.5,
    gamma: float | Sequence[float] = 1.0,
    beta: float | Sequence[float] = 0.0,
) -> Graph:
    """A convolutional network: strided convolutions, then one linear layer.

    Reference: wei2018, Section 4.

    Args:
        input_shape: (channels, *positions), with one, two or three dimensions of positions.
        channels: of each convolution.
        outputs: size of the last layer.
        kernel: size of the filters in every dimension.
        stride: step of the filters.
        padding: zeros on each side.
        head: flatten (all positions), or average (their mean).
        norm: none, batch, layer or group.
        activation: by name, or a smooth function of arrays.
        weight_variance: variance of a weight times the inputs of a unit.
        bias_variance: variance of a bias.
        gamma: scale of the normalization, one number or one for each convolution.
        beta: its shift, likewise.

    Returns:
        The graph.

    Raises:
        UnknownNameError: if there is no such norm, head or activation.
    """
    if head not in HEADS:
        raise unknown_name("head", head, HEADS)
    scales = per_layer("gamma", gamma, len(channels))
    shifts = per_layer("beta", beta, len(channels))
    window = _window(kernel, stride, padding, len(input_shape) - 1)
    parts: list[tuple[str, Operation]] = []
    positions = tuple(input_shape[1:])
    for layer, (inputs, maps) in enumerate(pairwise((input_shape[0], *channels))):
        parts.append(
            (
                f"conv{layer + 1}",
                Convolution(inputs, maps, window, 1, weight_variance, bias_variance),
            )
        )
        parts += _norm_and_activation(layer + 1, norm, scales[layer], shifts[layer], activation)
        positions = window.outputs(positions)
    features = channels[-1]
    if head == "average":
        parts.append(("pool", AveragePool(outputs=(1,) * len(positions))))
    else:
        features *= math.prod(positions)
    linear = Linear(features, outputs, weight_variance, bias_variance)
    parts += [("flatten", Flatten()), ("head", linear)]
    return chain(parts, input_shape)


def _window(kernel: int, stride: int, padding: int, dimensions: int) -> Window:
    sides = ((padding, padding),) * dimensions
    return Window((kernel,) * dimensions, (stride,) * dimensions, sides, (1,) * dimensions)


def per_layer(name: str, value: float | Sequence[float], layers: int) -> list[float]:
    """One number for each layer, from one for all or from as many."""
    values = [float(value)] * layers if isinstance(value, (int, float)) else [*map(float, value)]
    if len(values) != layers:
        raise InputError(
            f"{name} must be one number or {layers}, one for each normalization, got {len(values)}."
        )
    return values


def _norm_and_activation(
    number: int, norm: str, gamma: float, beta: float, activation: Choice
) -> list[tuple[str, Operation]]:
    if norm not in NORMS:
        raise unknown_name("normalization", norm, NORMS)
    make = NORMS[norm]
    function = activation_of(activation)
    parts: list[tuple[str, Operation]] = []
    if make is not None:
        parts.append((f"norm{number}", make(gamma=gamma, beta=beta)))
    return [*parts, (f"{function.name}{number}", Nonlinearity(function))]
