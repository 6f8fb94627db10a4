"""From an ``nn.Module`` to a graph: what each call of the forward pass means to the theory."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from operator import attrgetter
from typing import Any

from torch import fx, nn
from torch.nn.parameter import is_lazy

from normscope.errors import InputError, NoClosureError
from normscope.layers.tracing import traced
from normscope.meanfield.graph import INPUT, MEASURE, Graph, Node
from normscope.meanfield.max_pooling import MaxPool
from normscope.meanfield.operations import Operation, Weighted
from normscope.meanfield.pointwise import Addition, Nonlinearity
from normscope.meanfield.reading_functions import SIZE, operation_of_call
from normscope.meanfield.reading_modules import SUPPORTED, Unsupported, operation_of
from normscope.problem.diagnose import require_module

__all__ = ["read"]

_OTHER_INPUT = "input"  # stands for an input beyond the first
_TENSOR = "tensor"  # stands for a tensor that is neither an input nor what a layer gave
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
        NoClosureError: if the forward pass cannot be followed, or holds something that the theory
            has no closure for; the message names it.
    """
    require_module(model, "predict")
    root, calls = _followed(model)
    reader = _Reader(model, root, activations or {})
    for node in calls.nodes:
        reader.take(node)
    return Graph(tuple(_pooled_first(reader.nodes)), shape or _first_shape(reader.nodes))


def _followed(model: nn.Module) -> tuple[nn.Module, fx.Graph]:
    """A copy, to which torch.fx may add attributes, and the calls of its forward pass."""
    kind = type(model).__name__
    try:
        root = copy.deepcopy(model).eval()
    except Exception as error:  # an attribute of the user's may refuse in any way
        raise NoClosureError(
            f"the theory reads a copy of {kind}, which copy.deepcopy cannot make ({error})", MEASURE
        ) from error
    try:
        calls = traced(root)
    except ValueError:  # a forward pass of compiled code has no signature
        calls = None
    if calls is None:
        raise NoClosureError(
            f"the forward pass of {kind} cannot be followed by torch.fx (it may branch on values, "
            "or take several inputs)",
            MEASURE,
        )
    return root, calls[0]


class _Reader:
    """Collects operations call by call.

    Args:
        model: the user's, which has the tensors that he named.
        root: the copy whose forward pass was followed.
        activations: further activation modules by type.
    """

    def __init__(self, model: nn.Module, root: nn.Module, activations: dict[type, Any]) -> None:
        self.model = model
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
        elif node.op == "get_attr":
            self.places[node] = _TENSOR  # whether it is used is seen later
        else:
            self._check_output(node.args[0])

    def _check_output(self, value: Any) -> None:
        if not isinstance(value, fx.Node):
            raise self._refused("the output", "what is no single tensor")
        if self.places[value] == INPUT:
            raise self._refused("the output", "the model's input as it came")
        if self.places[value] != len(self.nodes) - 1:
            raise self._refused("the output", "another value than the last one computed")

    def _take_input(self, node: fx.Node) -> None:
        # one after the first is held at its default; that the value is used is seen later
        self.places[node] = _OTHER_INPUT if INPUT in self.places.values() else INPUT

    def _take_module(self, node: fx.Node) -> None:
        name = str(node.target)
        module = self.root.get_submodule(name)
        held = [*module.parameters(), *module.buffers()]
        if any(is_lazy(each) or each.is_meta or not each.numel() for each in held):
            raise self._refused(name, f"a {type(module).__name__} whose weights have no values")
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
        for each in node.all_input_nodes:
            if self.places[each] == _TENSOR:
                raise self._refused_tensor(str(each.target), name)
        sources = [self.places[each] for each in node.args if isinstance(each, fx.Node)]
        sources += [self.places[each] for each in node.kwargs.values() if isinstance(each, fx.Node)]
        sources = [each for each in sources if each != SIZE]
        if _OTHER_INPUT in sources:
            raise self._refused(name, "a second input")
        if isinstance(operation, Addition) and len(sources) == 1:
            raise self._refused(name, "a sum with a number")
        wanted = 2 if isinstance(operation, Addition) else 1
        if len(sources) != wanted:
            raise self._refused(name, f"a call with {len(sources)} inputs")
        if operation is None:
            self.places[node] = sources[0]
            return
        self.nodes.append(Node(name, operation, tuple(sources)))
        self.places[node] = len(self.nodes) - 1

    def _refused_tensor(self, tensor: str, user: str) -> NoClosureError:
        """The error for a tensor by its own name, if the model has one for it."""
        try:
            value = attrgetter(tensor)(self.model)
        except AttributeError:  # torch.fx has named it
            return self._refused(user, "a tensor that the forward pass makes itself")
        kind = "a parameter" if isinstance(value, nn.Parameter) else "a tensor"
        kind = "a buffer" if tensor in dict(self.model.named_buffers()) else kind
        return self._refused(tensor, f"{kind} that the forward pass uses itself, in {user}")

    @staticmethod
    def _refused(name: str, what: str) -> NoClosureError:
        return NoClosureError(
            f"{name}: mean-field theory has no closure here for {what}",
            f"Supported are {SUPPORTED}. {MEASURE}",
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
