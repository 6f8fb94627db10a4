"""Translate the traced forward pass of a module into a graph of operations."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from normscope.errors import InputError, NoClosureError, StateError
from normscope.layers.surgery.call_graph import is_known_layer
from normscope.layers.surgery.trial import trace_differs
from normscope.meanfield.activations import Addition, Dropout, Nonlinearity
from normscope.meanfield.field import Operation, Weighted
from normscope.meanfield.graph import INPUT, MEASURE, Graph, Node
from normscope.meanfield.pooling import MaxPool
from normscope.meanfield.reading.refusals import refuse_hooks, unreadable
from normscope.meanfield.reading.rules import (
    SUPPORTED,
    Unsupported,
    operation_of_call,
    operation_of_module,
)
from normscope.meanfield.weighted import Linear
from normscope.problem.copies import copy_module, undisturbed
from normscope.problem.diagnose import require_module
from normscope.problem.trace import trace
from normscope.problem.wrappers import refuse_sharded, unwrapped

# What a value of the forward pass is, if it is not the output of an operation.
_OTHER_INPUT = "input"  # an input after the first
_TENSOR = "tensor"  # a tensor that is neither an input nor the output of a layer
_SIZE = "size"  # only a size
_INCREASING = ("relu", "leaky_relu", "linear", "tanh", "sigmoid", "erf")


def read(
    model: nn.Module,
    shape: tuple[int, ...] | None = None,
    activations: dict[type, Any] | None = None,
) -> Graph:
    """Return the graph of a model; variances are those of its weights.

    Args:
        model: of supported layers, with any forward pass that can be traced; it is not changed.
        shape: of one input, without the batch; None to take it from a first linear layer.
        activations: further activation modules by type, with their functions on arrays.

    Returns:
        The graph.

    Raises:
        NoClosureError: if the forward pass cannot be traced, or contains something that the
            theory has no closure for; the message names it.
    """
    require_module(model, "predict")
    refuse_sharded(model)
    model = unwrapped(model)
    refuse_hooks(model)
    with undisturbed(model):
        root, calls = _trace_copy(model)
        reader = _Reader(model, root, activations or {})
        for node in calls.nodes:
            reader.take(node)
        graph = Graph(tuple(_pooled_first(reader.nodes)), shape or _first_shape(reader.nodes))
        inputs = torch.randn(2, *graph.shape, generator=torch.Generator().manual_seed(0))
        if trace_differs(root, calls, inputs):
            raise NoClosureError(
                f"the forward pass of {type(model).__name__} gives other outputs than the calls "
                "read from it (it may branch on the type of a tensor)",
                MEASURE,
            )
    return graph


def _trace_copy(model: nn.Module) -> tuple[nn.Module, fx.Graph]:
    """Return a copy of the model, and the calls of its forward pass."""
    kind = type(model).__name__
    try:
        root = copy_module(model).eval()
    except StateError as error:
        reason = str(error).partition(";")[0]
        raise NoClosureError(f"the theory cannot read {kind}: {reason}", MEASURE) from error
    calls = trace(root, is_known_layer)
    if calls is None:
        raise NoClosureError(
            f"the forward pass of {kind} cannot be traced (it may branch on values, or take "
            "several inputs)",
            MEASURE,
        )
    return root, calls[0]


class _Reader:
    """Collects operations call by call.

    Args:
        model: the user's model, to look up the names of its tensors.
        root: the copy whose forward pass was traced.
        activations: further activation modules by type.
    """

    def __init__(self, model: nn.Module, root: nn.Module, activations: dict[type, Any]) -> None:
        self.model = model
        self.root = root
        self.activations = activations
        self.nodes: list[Node] = []
        self.values: dict[fx.Node, Any] = {}  # index in ``nodes``, or one of the words above
        self._seen: set[str] = set()
        self._weights: dict[Any, str] = {}  # names of layers by the address of their weights

    def take(self, node: fx.Node) -> None:
        """Read one call of the forward pass."""
        if node.op == "placeholder":
            first = INPUT not in self.values.values()
            self.values[node] = INPUT if first else _OTHER_INPUT
        elif node.op == "call_module":
            self._take_module(node)
        elif node.op in ("call_function", "call_method"):
            self._take_function(node)
        elif node.op == "get_attr":
            self.values[node] = _TENSOR  # an error only if it is used
        else:
            self._check_output(node.args[0])

    def _check_output(self, value: Any) -> None:
        if not isinstance(value, fx.Node):
            raise self._refused("the output", "anything but a single tensor")
        if self.values[value] == INPUT:
            raise self._refused("the output", "the model's input as it came")
        if self.values[value] != len(self.nodes) - 1:
            raise self._refused("the output", "another value than the last one computed")

    def _take_module(self, node: fx.Node) -> None:
        name = str(node.target)
        module = self.root.get_submodule(name)
        held = [*module.parameters(), *module.buffers()]
        if any(is_lazy(each) or each.is_meta or not each.numel() for each in held):
            raise self._refused(name, f"a {type(module).__name__} whose weights have no values")
        operation = operation_of_module(module, self.activations)
        if isinstance(operation, Unsupported):
            raise self._refused(name, f"the module {type(module).__name__}")
        own = self.model.get_submodule(name)  # with its flag; the copy is in eval mode
        if isinstance(operation, Weighted):
            self._take_weights(name, own)
        reason = unreadable(own, self.model)
        if reason is not None:
            raise self._refused(name, f"a {type(module).__name__} {reason}")
        if isinstance(operation, Dropout) and self.model.training and not own.training:
            operation = None
        self._add(node, name, operation)

    def _take_weights(self, name: str, module: nn.Module) -> None:
        """Refuse weights that are used twice."""
        kind = type(module).__name__
        weight = module.get_parameter("weight") if not is_parametrized(module) else None
        first = self._weights.setdefault(name if weight is None else weight.data_ptr(), name)
        if name in self._seen:
            raise self._refused(name, f"a {kind} that is called twice")
        if first != name:
            raise self._refused(name, f"a {kind} whose weights are those of {first}")
        self._seen.add(name)

    def _take_function(self, node: fx.Node) -> None:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if self._holds_sizes(node):
            self.values[node] = _SIZE
            return
        operation = operation_of_call(str(name), node)
        if isinstance(operation, Unsupported):
            kind = "method" if node.op == "call_method" else "function"
            raise self._refused(node.name, f"the {kind} {name}")
        self._add(node, node.name, operation)

    def _holds_sizes(self, node: fx.Node) -> bool:
        """Return whether a call only returns the shape of something, or computes with sizes."""
        asks = node.target in ("size", "dim") or (
            getattr(node.target, "__name__", "") == "getattr" and node.args[1] in ("shape", "ndim")
        )
        inputs = node.all_input_nodes
        return asks or all(self.values.get(each) in (_SIZE, _OTHER_INPUT) for each in inputs)

    def _add(self, node: fx.Node, name: str, operation: Operation | Addition | None) -> None:
        for each in node.all_input_nodes:
            if self.values[each] == _TENSOR:
                raise self._refused_tensor(str(each.target), name)
        sources = [self.values[each] for each in node.args if isinstance(each, fx.Node)]
        sources += [self.values[each] for each in node.kwargs.values() if isinstance(each, fx.Node)]
        sources = [each for each in sources if each != _SIZE]
        if _OTHER_INPUT in sources:
            raise self._refused(name, "a second input")
        if isinstance(operation, Addition) and len(sources) == 1:
            raise self._refused(name, "a sum with a number")
        wanted = 2 if isinstance(operation, Addition) else 1
        if len(sources) != wanted:
            raise self._refused(name, f"a call with {len(sources)} inputs")
        if operation is None:
            self.values[node] = sources[0]
            return
        self.nodes.append(Node(name, operation, tuple(sources)))
        self.values[node] = len(self.nodes) - 1

    def _refused_tensor(self, tensor: str, user: str) -> NoClosureError:
        """Return the error for a tensor, with its name in the model if it has one."""
        try:
            value = attrgetter(tensor)(self.model)
        except AttributeError:  # not an attribute of the model
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
    """Move max pooling before an increasing activation, which is equivalent.

    The theory knows the largest of normal values, and values are normal before the activation.
    """
    nodes = list(nodes)
    for index, node in enumerate(nodes):
        if not isinstance(node.operation, MaxPool):
            continue
        source = node.inputs[0]
        before = None if source == INPUT else nodes[source]
        users = [other for other in nodes if source in other.inputs]
        if before is None or not isinstance(before.operation, Nonlinearity):
            continue
        if before.operation.function.name not in _INCREASING or len(users) > 1:
            raise _Reader._refused(node.name, f"max pooling after {before.name}")
        nodes[source] = replace(node, inputs=before.inputs)
        nodes[index] = replace(before, inputs=(source,))
    return nodes


def _first_shape(nodes: list[Node]) -> tuple[int, ...]:
    """Return the shape of the input, if the first weights are those of a linear layer."""
    first = next((n.operation for n in nodes if isinstance(n.operation, Weighted)), None)
    if isinstance(first, Linear):
        return (first.inputs,)
    raise InputError(
        "predict needs input_shape (without the batch), such as (3, 32, 32), or data: the model "
        "does not begin with a linear layer."
    )
