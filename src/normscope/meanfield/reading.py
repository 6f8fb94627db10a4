"""From an ``nn.Module`` to a graph: what each call of the forward pass means to the theory."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

from torch import fx, nn

from normscope.errors import InputError
from normscope.layers.tracing import require_module, traced
from normscope.meanfield.graph import INPUT, Graph, Node
from normscope.meanfield.max_pooling import MaxPool
from normscope.meanfield.operations import Operation, Weighted
from normscope.meanfield.pointwise import Addition, Nonlinearity
from normscope.meanfield.reading_functions import SIZE, operation_of_call
from normscope.meanfield.reading_modules import SUPPORTED, Unsupported, operation_of

__all__ = ["read"]

_OTHER_INPUT = "input"  # stands for an input beyond the first
_INCREASING = ("relu", "leaky_relu", "linear", "tanh", "sigmoid", "erf")


def read(
    model: nn.Module,
    shape: tuple[int, ...] | None = None,
    activations: dict[type, Any] | None = None,
) -> Graph:
    """The graph of a model; weights are measured where they are.

    Args:
        model: of supported layers, called one after the other or in any forward function that
            torch.fx can follow; it is left alone.
        shape: of one input, without the batch; None to take it from a first linear layer.
        activations: further activation modules by type, with their functions on arrays.

    Returns:
        The graph.

    Raises:
        InputError: if the forward pass cannot be followed, or holds something that the theory has
            no closure for; the message names it.
    """
    require_module(model, "predict")
    root = copy.deepcopy(model).eval()
    calls = traced(root)
    if calls is None:
        raise InputError(
            f"the forward pass of {type(model).__name__} cannot be followed by torch.fx (it may "
            "branch on values, or take several inputs); normscope.max_learning_rate measures "
            "instead."
        )
    reader = _Reader(root, activations or {})
    for node in calls[0].nodes:
        reader.take(node)
    return Graph(tuple(_pooled_first(reader.nodes)), shape or _first_shape(reader.nodes))


class _Reader:
    """Collects operations call by call."""

    def __init__(self, root: nn.Module, activations: dict[type, Any]) -> None:
        self.root = root
        self.activations = activations
        self.nodes: list[Node] = []
        self.places: dict[fx.Node, Any] = {}  # index of the node that made a value, or a size
        self._seen: set[str] = set()

    def take(self, node: fx.Node) -> None:
        """One call of the forward pass."""
        if node.op == "placeholder":
            self._take_input(node)
        elif node.op == "call_module":
            self._take_module(node)
        elif node.op in ("call_function", "call_method"):
            self._take_function(node)
        elif node.op == "output" and self._place(node.args[0]) != len(self.nodes) - 1:
            raise self._refused("the output", "another value than the last one computed")

    def _place(self, value: Any) -> Any:
        return self.places.get(value) if isinstance(value, fx.Node) else None

    def _take_input(self, node: fx.Node) -> None:
        # one after the first is held at its default; that the value is used is seen later
        self.places[node] = _OTHER_INPUT if INPUT in self.places.values() else INPUT

    def _take_module(self, node: fx.Node) -> None:
        name = str(node.target)
        module = self.root.get_submodule(name)
        operation = operation_of(module, self.activations)
        if isinstance(operation, Unsupported):
            raise self._refused(name, f"the module {type(module).__name__}")
        if isinstance(operation, Weighted) and name in self._seen:
            raise self._refused(name, f"a {type(module).__name__} that is called twice")
        self._seen.add(name)
        self._add(node, name, operation)

    def _take_function(self, node: fx.Node) -> None:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if self._holds_sizes(node):
            self.places[node] = SIZE
            return
        operation = operation_of_call(str(name), node, self.places)
        if isinstance(operation, Unsupported):
            kind = "method" if node.op == "call_method" else "function"
            raise self._refused(node.name, f"the {kind} {name}")
        self._add(node, node.name, operation)

    def _holds_sizes(self, node: fx.Node) -> bool:
        """Whether a call only asks for the shape of something, or computes with sizes."""
        asks = node.target in ("size", "dim") or (
            getattr(node.target, "__name__", "") == "getattr" and node.args[1] in ("shape", "ndim")
        )
        inputs = node.all_input_nodes
        return asks or all(self.places.get(each) in (SIZE, _OTHER_INPUT) for each in inputs)

    def _add(self, node: fx.Node, name: str, operation: Operation | None) -> None:
        sources = [self.places[each] for each in node.args if isinstance(each, fx.Node)]
        sources += [self.places[each] for each in node.kwargs.values() if isinstance(each, fx.Node)]
        sources = [each for each in sources if each != SIZE]
        if _OTHER_INPUT in sources:
            raise self._refused(name, "a second input")
        if isinstance(operation, Addition) and len(sources) == 1:
            sources *= 2  # x + x, which the graph refuses with its reason
        wanted = 2 if isinstance(operation, Addition) else 1
        if len(sources) != wanted:
            raise self._refused(name, f"a call with {len(sources)} inputs")
        if operation is None:
            self.places[node] = sources[0]
            return
        self.nodes.append(Node(name, operation, tuple(sources)))
        self.places[node] = len(self.nodes) - 1

    @staticmethod
    def _refused(name: str, what: str) -> InputError:
        return InputError(
            f"{name}: mean-field theory has no closure here for {what}. Supported are {SUPPORTED}. "
            "normscope.max_learning_rate measures instead."
        )


def _pooled_first(nodes: list[Node]) -> list[Node]:
    """Max pooling before the increasing activation it follows, which is the same thing.

    The theory knows the largest of normal values, which they are before the activation.
    """
    nodes = list(nodes)
    for index, node in enumerate(nodes):
        if not isinstance(node.operation, MaxPool):
            continue
        source = node.inputs[0]
        before = None if source == INPUT else nodes[source]
        users = [other for other in nodes if source in other.inputs]
        if before is None or not isinstance(before.operation, Nonlinearity):
            continue  # of normal values, or refused when it flows
        if before.operation.function.name not in _INCREASING or len(users) > 1:
            raise _Reader._refused(node.name, f"max pooling after {before.name}")
        nodes[source] = replace(node, inputs=before.inputs)
        nodes[index] = replace(before, inputs=(source,))
    return nodes


def _first_shape(nodes: list[Node]) -> tuple[int, ...]:
    """The input's shape, if the first weights are those of a linear layer."""
    for node in nodes:
        if isinstance(node.operation, Weighted):
            inputs = getattr(node.operation, "inputs", 0)
            if not hasattr(node.operation, "window"):
                return (math.prod((inputs,)),)
            break
    raise InputError(
        "predict needs input_shape (without the batch), such as (3, 32, 32), or data: the model "
        "does not begin with a linear layer."
    )
