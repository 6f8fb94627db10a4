"""A network as a graph of operations, and how order parameters flow through it.

A graph is read off a module (:mod:`normscope.meanfield.reading`) or specified by its sizes, without
torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from normscope.errors import InputError, NoClosureError, ShapeError
from normscope.meanfield.activations import Activation, Nonlinearity
from normscope.meanfield.activations import activation as activation_of
from normscope.meanfield.arrangements import ChannelPart
from normscope.meanfield.combinations import Addition, Product
from normscope.meanfield.field import (
    Combination,
    Field,
    Operation,
    Setting,
    Signal,
    Weighted,
    combined,
    representatives,
)
from normscope.meanfield.integrals import Array
from normscope.meanfield.norms import BatchNorm, Norm, SampleNorm
from normscope.meanfield.pooling import AveragePool, Flatten
from normscope.meanfield.weighted import Convolution, Linear
from normscope.meanfield.windows import Window
from normscope.registry import unknown_name

INPUT = -1  # index of the network's input
MEASURE = "normscope.max_learning_rate measures instead."  # advice if there is no closure


@dataclass(frozen=True)
class Node:
    """One operation of a network.

    Args:
        name: qualified name of the module, or of the function that is called.
        operation: what it does.
        inputs: indices of the nodes whose outputs it takes; -1 for the network's input.
    """

    name: str
    operation: Operation | Combination
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """Second moments of the data; iid normal with variance one unless measured.

    Args:
        shape: of one sample: (features,) or (channels, *positions).
        same: mean over channels of the product of two positions of one sample, (positions,
            positions); None for independent ones of variance one.
        pair: the same for two samples; None for zero.
    """

    shape: tuple[int, ...]
    same: Array | None = None
    pair: Array | None = None

    @property
    def count(self) -> int:
        """Number of positions."""
        return int(np.prod(self.shape[1:]))

    def field(self, setting: Setting) -> Field:
        """Return the order parameters, resolved or for positions that are all alike."""
        resolved = setting.resolves(self.count)
        held = self.count if resolved else 2
        same = np.eye(held) if self.same is None else self.same
        pair = np.zeros((held, held)) if self.pair is None else self.pair
        if held == 2:
            same, pair = representatives(same), representatives(pair)
        mean = np.zeros((1, held))  # over channels, whose signs do not matter to random weights
        return Field(self.shape[0], self.shape[1:], resolved, mean, np.stack([same, pair])[None])


@dataclass(frozen=True)
class Graph:
    """Operations in topological order; the last one gives the output.

    Args:
        nodes: the operations.
        shape: of one input, without the batch.
        channel: the dimension of the input that has the channels; the others are positions.
    """

    nodes: tuple[Node, ...]
    shape: tuple[int, ...]
    channel: int = 0

    @property
    def channels_first(self) -> tuple[int, ...]:
        """Channels and positions of one input."""
        others = (size for d, size in enumerate(self.shape) if d != self.channel)
        return (self.shape[self.channel], *others)

    @property
    def needs_positions(self) -> bool:
        """Whether positions of a map differ or are weighted differently."""
        return any(node.operation.needs_positions for node in self.nodes)

    def with_gamma(self, gamma: Array | float | None) -> Graph:
        """Return the same graph with this scale in every normalization.

        Args:
            gamma: a number, or one for each setting of a sweep; None for no change.

        Returns:
            A new graph.
        """
        if gamma is None:
            return self
        return self._changed(Norm, gamma=np.asarray(gamma, dtype=float))

    def with_variances(self, weight: float | None, bias: float | None) -> Graph:
        """Return the same graph with these variances of weights (times fan in) and biases."""
        given = {"weight_variance": weight, "bias_variance": bias}
        changes = {name: value for name, value in given.items() if value is not None}
        if weight is not None:
            changes["weight_mean"] = 0.0
        return self._changed(Weighted, **changes)

    def _changed(self, kind: type[Any], **changes: Any) -> Graph:
        nodes = list(self.nodes)
        for index, node in enumerate(nodes):
            operation: Any = node.operation
            if isinstance(operation, kind):
                nodes[index] = replace(node, operation=replace(operation, **changes))
        return replace(self, nodes=tuple(nodes))

    def forward(self, start: Field, setting: Setting) -> list[Field]:
        """Return the order parameters of the output of every node.

        Args:
            start: those of the input.
            setting: of the closure.

        Returns:
            One field for each node.

        Raises:
            ShapeError: if an operation does not fit its input; the message names the node.
        """
        fields: list[Field] = []
        for node in self.nodes:
            inputs = [start if index == INPUT else fields[index] for index in node.inputs]
            if isinstance(node.operation, (Addition, Product)):
                self._refuse_dependent(node)
            try:
                if isinstance(node.operation, Combination):
                    fields.append(node.operation.apply(inputs, setting))
                else:
                    fields.append(node.operation.apply(inputs[0], setting))
            except ShapeError as error:
                raise ShapeError(f"{node.name}: {error}") from error
        return fields

    def backward(self, start: Field, fields: list[Field], setting: Setting) -> list[Signal | None]:
        """Return the gradients of one output with respect to the output of every node.

        Args:
            start: the order parameters of the input.
            fields: the order parameters of the outputs of all nodes.
            setting: of the closure.

        Returns:
            One signal for each node, None where no gradient arrives.

        Raises:
            ShapeError: if the output is a map.
        """
        output = fields[-1]
        if output.count != 1:
            shape = (output.channels, *output.positions)
            raise ShapeError(
                f"the theory is about networks with a vector of outputs, got a map of {shape}; "
                "pool or flatten it."
            )
        settings = output.kernel.shape[0]
        first = Signal(np.ones((settings, 2, 1, 1)), np.zeros((settings, 4)))
        arriving: list[list[Signal]] = [[] for _ in self.nodes]
        arriving[-1].append(first)
        for index in reversed(range(len(self.nodes))):
            if not arriving[index]:
                continue
            signal = combined(arriving[index])
            arriving[index] = [signal]
            node = self.nodes[index]
            for which, source in enumerate(node.inputs):
                if source == INPUT:
                    continue
                if isinstance(node.operation, Combination):
                    inputs = [start if at == INPUT else fields[at] for at in node.inputs]
                    part = node.operation.pull_back(signal, inputs, which, fields[index], setting)
                else:
                    part = node.operation.pull_back(signal, fields[source], fields[index], setting)
                arriving[source].append(part)
        return [signals[0] if signals else None for signals in arriving]

    def _refuse_dependent(self, node: Node) -> None:
        """Raise for branches that no weights separate: they are dependent and have no closure."""
        first, second = (self._without_weights(index) for index in node.inputs)
        for at in first.keys() & second.keys():
            ours, theirs = first[at], second[at]
            if ours is not None and theirs is not None and not ours & theirs:
                continue  # other channels of one layer
            does = "adds" if isinstance(node.operation, Addition) else "multiplies"
            raise NoClosureError(
                f"{node.name} {does} branches with no linear or convolution layer between their "
                f"fork and their {'sum' if does == 'adds' else 'product'}, for which there is no "
                "closure",
                MEASURE,
            )

    def _without_weights(self, index: int) -> dict[int, frozenset[int] | None]:
        """Return a node and all nodes before it up to the closest weights.

        Each has the channels that are used of it; None for all.
        """
        found: dict[int, frozenset[int] | None] = {}
        open_: list[tuple[int, frozenset[int] | None]] = [(index, None)]
        while open_:
            at, channels = open_.pop()
            before = found.get(at, channels)
            found[at] = None if before is None or channels is None else before | channels
            if at == INPUT or isinstance(self.nodes[at].operation, Weighted):
                continue
            operation = self.nodes[at].operation
            if isinstance(operation, ChannelPart):
                channels = operation.chosen if channels is None else None
            open_ += [(source, channels) for source in self.nodes[at].inputs]
        return found


Choice = str | Activation | Callable[[Array], Array]

NORMS: dict[str, Callable[..., Operation] | None] = {
    "none": None,
    "batch": BatchNorm,
    "layer": SampleNorm,
    "group": SampleNorm,
}
HEADS = ("flatten", "average")


def chain(operations: Sequence[tuple[str, Operation]], shape: Sequence[int]) -> Graph:
    """Return a graph in which each operation takes the output of the one before.

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
    """Return a fully connected network: linear, normalization, activation; the last layer linear.

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
    scales, shifts = _per_layer("gamma", gamma, hidden), _per_layer("beta", beta, hidden)
    parts: list[tuple[str, Operation]] = []
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        linear = Linear(inputs, outputs, weight_variance, bias_variance)
        parts.append((f"linear{layer + 1}", linear))
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
    """Return a convolutional network: strided convolutions, then one linear layer.

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
    scales = _per_layer("gamma", gamma, len(channels))
    shifts = _per_layer("beta", beta, len(channels))
    dimensions = len(input_shape) - 1
    sides = ((padding, padding),) * dimensions
    window = Window((kernel,) * dimensions, (stride,) * dimensions, sides, (1,) * dimensions)
    parts: list[tuple[str, Operation]] = []
    positions = tuple(input_shape[1:])
    for layer, (inputs, maps) in enumerate(pairwise((input_shape[0], *channels))):
        convolution = Convolution(inputs, maps, window, 1, weight_variance, bias_variance)
        parts.append((f"conv{layer + 1}", convolution))
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


def _per_layer(name: str, value: float | Sequence[float], layers: int) -> list[float]:
    """Return one number for each layer, from one number for all or from a list."""
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
