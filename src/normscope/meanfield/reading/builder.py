"""The graph that is being read: its nodes, and what every value of the forward pass is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn

from normscope.errors import NoClosureError
from normscope.meanfield.arrangements import ChannelPart
from normscope.meanfield.field import Combination, Operation
from normscope.meanfield.graph import MEASURE, Node
from normscope.meanfield.reading.layout import SAMPLES, Arrangement, Layout
from normscope.meanfield.reading.rules import SUPPORTED, call_name, linear_of
from normscope.problem.batch import follow_model
from normscope.problem.tracing import CALLER

_LARGEST_KEPT = 2**16  # entries of a value that is kept after its last use


@dataclass(frozen=True, eq=False)
class Units:
    """A value whose elements are units of a node of the graph.

    Args:
        node: its index in the graph, or INPUT.
        layout: of its tensor; None if unknown.
    """

    node: int
    layout: Layout | None = None


@dataclass(frozen=True, eq=False)
class Parts:
    """A sequence of tensors cut from one value, as by ``chunk``."""

    items: tuple[Units, ...]


@dataclass(frozen=True, eq=False)
class Other:
    """A value that has no units: ``kind`` is input (after the first), tensor or size."""

    kind: str


SIZE, TENSOR, SECOND_INPUT = Other("size"), Other("tensor"), Other("input")


class Evaluator:
    """Runs the traced calls on a batch of two samples, for the sizes of all values.

    Args:
        root: the traced module.
        calls: its graph.
        shape: of one sample; None if unknown, so that only constants have values.
    """

    def __init__(self, root: nn.Module, calls: fx.Graph, shape: tuple[int, ...] | None) -> None:
        self._interpreter = fx.Interpreter(root, graph=calls)
        self._inputs: list[Tensor] = []
        if shape is not None:
            draws = torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(0))
            self._inputs = [*follow_model((draws,), root)]

    def run(self, node: fx.Node) -> None:
        """Compute the value of a node, if those of its inputs are known."""
        known = self._interpreter.env
        if node.op == "placeholder":
            if self._inputs:
                known[node] = self._inputs.pop()
            return
        with suppress(Exception), torch.no_grad():  # a model may raise anything
            known[node] = self._interpreter.run_node(node)
        for source in node.all_input_nodes:
            self._forget(source, node)

    def _forget(self, source: fx.Node, user: fx.Node) -> None:
        value = self._interpreter.env.get(source)
        if not isinstance(value, Tensor) or value.numel() <= _LARGEST_KEPT:
            return
        if next(reversed(source.users)) is user:
            self._interpreter.env[source] = torch.empty(value.shape, device="meta")

    def value(self, node: Any) -> Any:
        """Return the value of a node, None if it is not known; other arguments as they are."""
        return self._interpreter.env.get(node) if isinstance(node, fx.Node) else node

    def shape(self, node: fx.Node) -> tuple[int, ...] | None:
        """Return the shape of a node's value, None if it is not known."""
        value = self.value(node)
        return tuple(value.shape) if isinstance(value, Tensor) else None

    def arguments(self, node: fx.Node, replaced: dict[fx.Node, Any]) -> tuple[Any, Any]:
        """Return the arguments of a call as values, some of them replaced."""

        def value(each: fx.Node) -> Any:
            return replaced[each] if each in replaced else self.value(each)

        args: tuple[Any, ...] = fx.node.map_arg(node.args, value)
        return args, fx.node.map_arg(node.kwargs, value)


class Builder:
    """Collects nodes.

    Args:
        model: the user's model, to look up names.
        root: the copy whose forward pass was traced.
        evaluator: knows the sizes of all values.
    """

    def __init__(self, model: nn.Module, root: nn.Module, evaluator: Evaluator) -> None:
        self.model = model
        self.root = root
        self.evaluator = evaluator
        self.nodes: list[Node] = []
        self.values: dict[fx.Node, Any] = {}
        self.linear: dict[int, tuple[Tensor, Tensor | None]] = {}  # weights and biases by node
        self._parts: dict[tuple[int, ...], int] = {}  # nodes by that of a linear layer and its rows

    def add(self, name: str, operation: Operation | Combination, sources: Sequence[int]) -> int:
        """Add a node to the graph and return its index."""
        self.nodes.append(Node(name, operation, tuple(sources)))
        return len(self.nodes) - 1

    def value(self, node: Any) -> Any:
        """Return what an argument of a call is, None if it is not a value of the forward pass."""
        return self.values.get(node) if isinstance(node, fx.Node) else None

    def number(self, node: Any) -> float | None:
        """Return an argument that is a number or was computed from sizes, else None."""
        known = self.evaluator.value(node) if self.value(node) is SIZE else node
        return float(known) if isinstance(known, (int, float)) else None

    def units(self, node: Any) -> Units | None:
        """Return the units that a value holds; None for sizes, constants and numbers."""
        value = self.value(node)
        return value if isinstance(value, Units) else None

    def rearranged(
        self, name: str, units: Units, operations: Sequence[Operation], layout: Layout | None
    ) -> Units:
        """Apply operations that rearrange a field."""
        at = units.node
        for operation in operations:
            at = self.add(name, operation, (at,))
        return Units(at, layout)

    def arrange(
        self, name: str, units: Units, dimensions: Sequence[int], merge: bool = True
    ) -> tuple[Units, Arrangement] | None:
        """Bring a field into the form that a layer needs.

        Args:
            name: of the layer.
            units: its input, whose layout is known.
            dimensions: of the tensor in which the layer expects channels.
            merge: whether positions may become channels.

        Returns:
            The rearranged field and its arrangement; None if its channels lie elsewhere.
        """
        assert units.layout is not None
        arrangement = units.layout.arranged(dimensions)
        operations = None if arrangement is None else arrangement.operations(merge)
        if arrangement is None or operations is None:
            return None
        layout = arrangement.layout_of(arrangement.units.shape[1], arrangement.inner_shape)
        if operations and isinstance(operations[0], ChannelPart) and units.node in self.linear:
            units = Units(self._rows(units.node, sorted(operations[0].chosen)), units.layout)
            operations = operations[1:]
        return self.rearranged(name, units, operations, layout), arrangement

    def _rows(self, node: int, rows: list[int]) -> int:
        """Add a linear layer of some rows of another one, with the moments of their weights."""
        key, whole = (node, *rows), self.nodes[node]
        if key not in self._parts:
            weight, bias = self.linear[node]
            steps = {b - a for a, b in pairwise(rows)} or {1}
            step = f":{steps.pop()}" if len(steps) == 1 and steps != {1} else ""
            part = linear_of(weight[rows], None if bias is None else bias[rows])
            name = f"{whole.name}[{rows[0]}:{rows[-1] + 1}{step}]"
            made = self.add(name, replace(part, each_position=True), whole.inputs)
            self._parts[key] = made
        return self._parts[key]

    def compact(self, name: str, units: Units) -> Units:
        """Return a field that has all the units of its tensor, and no others."""
        layout = units.layout
        if layout is None or layout.is_complete:
            return units
        found = self.arrange(name, units, layout.channel_dimensions(), merge=False)
        return units if found is None else found[0]

    def where(self, node: fx.Node) -> str:
        """Return the path and class of the module that makes a call."""
        path = str(node.meta.get(CALLER, ""))
        if not path:
            return type(self.model).__name__
        return f"{path} ({type(self.model.get_submodule(path)).__name__})"

    def name(self, node: fx.Node) -> str:
        """Return a name for a call of a function."""
        return f"{call_name(node)} in {self.where(node)}"

    def refused_tensor(self, node: fx.Node, user: str) -> NoClosureError:
        """Return the error for a tensor, with its name in the model if it has one."""
        if node.op != "get_attr" or (value := self.attribute(node)) is None:
            return refused(user, "a tensor that the forward pass makes itself")
        tensor = str(node.target)
        kind = "a parameter" if isinstance(value, nn.Parameter) else "a tensor"
        kind = "a buffer" if tensor in dict(self.model.named_buffers()) else kind
        return refused(tensor, f"{kind} that the forward pass uses itself, in {user}")

    def attribute(self, node: fx.Node) -> Any:
        """Return the attribute of the user's model that a node reads, None if it has none."""
        try:
            return attrgetter(str(node.target))(self.model)
        except AttributeError:
            return None


def refused(name: str, what: str) -> NoClosureError:
    """Return the error for something that the theory has no closure for."""
    return NoClosureError(
        f"{name}: mean-field theory has no closure here for {what}",
        f"Supported are {SUPPORTED}. {MEASURE}",
    )
