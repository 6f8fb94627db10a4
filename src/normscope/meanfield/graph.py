"""A network as a graph of operations, and the flow of order parameters through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from normscope.errors import NoClosureError, ShapeError
from normscope.meanfield.field import Field, Signal, combined
from normscope.meanfield.gaussian_integrals import Array
from normscope.meanfield.norms import Norm
from normscope.meanfield.operations import LARGEST_RESOLVED_MAP, Operation, Setting, Weighted
from normscope.meanfield.pointwise import Addition

__all__ = ["Graph", "Input", "Node"]

INPUT = -1  # the index that stands for the network's input
MEASURE = "normscope.max_learning_rate measures instead."  # the way out of what has no closure


@dataclass(frozen=True)
class Node:
    """One operation of a network.

    Args:
        name: qualified name of the module, or of the function that is called.
        operation: what it does.
        inputs: indices of the nodes that it takes; -1 for the network's input.
    """

    name: str
    operation: Operation
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

    def field(self, resolve: bool) -> Field:
        """Its order parameters, position by position or for positions that are all alike."""
        resolved = self.count == 1 or (resolve and self.count <= LARGEST_RESOLVED_MAP)
        held = self.count if resolved else 2
        planes = [
            np.eye(held) if self.same is None else _held(self.same, held),
            np.zeros((held, held)) if self.pair is None else _held(self.pair, held),
        ]
        mean = np.zeros((1, held))  # over channels, whose signs mean nothing to random weights
        return Field(self.shape[0], self.shape[1:], resolved, mean, np.stack(planes)[None])


@dataclass(frozen=True)
class Graph:
    """Operations in an order in which they can be done; the last gives the output.

    Args:
        nodes: the operations.
        shape: of one input, without the batch.
    """

    nodes: tuple[Node, ...]
    shape: tuple[int, ...]

    @property
    def needs_positions(self) -> bool:
        """Whether positions of a map differ or are weighed differently."""
        return any(node.operation.needs_positions for node in self.nodes)

    def with_gamma(self, gamma: Array | float | None) -> Graph:
        """The same graph with this scale in every normalization.

        Args:
            gamma: a number, or one for each setting of a sweep; None to leave them.

        Returns:
            A new graph.
        """
        if gamma is None:
            return self
        return self._changed(
            Norm, lambda operation: replace(operation, gamma=np.asarray(gamma, dtype=float))
        )

    def with_variances(self, weight: float | None, bias: float | None) -> Graph:
        """The same graph with these variances of weights (times fan in) and biases."""
        given = {"weight_variance": weight, "bias_variance": bias}
        changes = {name: value for name, value in given.items() if value is not None}
        return self._changed(Weighted, lambda operation: replace(operation, **changes))

    def _changed(self, kind: type, change: Callable[..., Operation]) -> Graph:
        nodes = (
            replace(node, operation=change(node.operation))
            if isinstance(node.operation, kind)
            else node
            for node in self.nodes
        )
        return replace(self, nodes=tuple(nodes))

    def forward(self, start: Field, setting: Setting) -> list[Field]:
        """The order parameters of every node's output.

        Args:
            start: those of the input.
            setting: how to flow.

        Returns:
            One field for each node.

        Raises:
            ShapeError: if an operation does not fit what it gets; the message names the node.
        """
        fields: list[Field] = []
        for node in self.nodes:
            inputs = [start if index == INPUT else fields[index] for index in node.inputs]
            if isinstance(node.operation, Addition):
                self._refuse_dependent(node)
            try:
                fields.append(node.operation.apply(inputs, setting))
            except ShapeError as error:
                raise ShapeError(f"{node.name}: {error}") from error
        return fields

    def backward(self, start: Field, fields: list[Field], setting: Setting) -> list[Signal | None]:
        """The gradients of one output at every node's output.

        Args:
            start: the order parameters of the input.
            fields: those of every node's output.
            setting: how to flow.

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
            inputs = [start if each == INPUT else fields[each] for each in node.inputs]
            parts = node.operation.pull_back(signal, inputs, fields[index], setting)
            for source, part in zip(node.inputs, parts, strict=True):
                if source != INPUT:
                    arriving[source].append(part)
        return [signals[0] if signals else None for signals in arriving]

    def _refuse_dependent(self, node: Node) -> None:
        """Branches that no weights separate are not independent, and have no closure here."""
        first, second = (self._without_weights(index) for index in node.inputs)
        if first & second:
            raise NoClosureError(
                f"{node.name} adds branches with no linear or convolution layer between their "
                "fork and their sum, for which there is no closure",
                MEASURE,
            )

    def _without_weights(self, index: int) -> set[int]:
        """A node and all before it up to the last weights."""
        found, open_ = set(), [index]
        while open_:
            at = open_.pop()
            found.add(at)
            if at != INPUT and not isinstance(self.nodes[at].operation, Weighted):
                open_ += self.nodes[at].inputs
        return found


def _held(matrix: Array, held: int) -> Array:
    """A matrix over positions, or its mean on and off the diagonal."""
    count = len(matrix)
    if count == held and held != 2:
        return matrix
    own = float(np.trace(matrix)) / count
    other = (float(matrix.sum()) - own * count) / max(count * (count - 1), 1)
    return np.array([[own, other], [other, own]]) if held == 2 else matrix
