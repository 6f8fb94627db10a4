"""Translate the traced forward pass of a module into a graph of operations."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from normscope.errors import InputError, MisfitError, NoClosureError, StateError
from normscope.layers.surgery.call_graph import is_known_layer
from normscope.layers.surgery.trial import trace_differs
from normscope.meanfield.activations import Dropout, Nonlinearity
from normscope.meanfield.combinations import Addition
from normscope.meanfield.field import Operation, Weighted
from normscope.meanfield.graph import INPUT, MEASURE, Graph, Node
from normscope.meanfield.norms import BatchNorm, SampleNorm, TokenNorm
from normscope.meanfield.pooling import MaxPool
from normscope.meanfield.reading import attention, transformer
from normscope.meanfield.reading.builder import (
    SECOND_INPUT,
    SIZE,
    TENSOR,
    Builder,
    Evaluator,
    Units,
    refused,
)
from normscope.meanfield.reading.calls import HANDLERS, RELABELLING, flattened, relabel
from normscope.meanfield.reading.layout import SAMPLES, Layout
from normscope.meanfield.reading.refusals import refuse_hooks, unreadable
from normscope.meanfield.reading.rules import (
    Unsupported,
    call_name,
    operation_of_call,
    operation_of_module,
    own_norm,
    words_of_call,
)
from normscope.meanfield.weighted import Linear
from normscope.problem.batch import follow_model
from normscope.problem.copies import copy_module, undisturbed
from normscope.problem.error_messages import FitCheck, require_module
from normscope.problem.isolation import RandomGenerators
from normscope.problem.tracing import CALLER, GRADIENTS, UntraceableError, record_calls
from normscope.problem.wrappers import refuse_sharded, unwrapped

_INCREASING = ("relu", "leaky_relu", "linear", "tanh", "sigmoid", "erf")
_MOVING_MODULES = (nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle)
_OF_NUMBERS = {"div": "truediv", "floor_divide": "floordiv", "multiply": "mul", "subtract": "sub"}
_ELEMENTWISE = (Nonlinearity, Dropout)


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
        if shape is not None:
            _check_shape(root, shape)
        known = shape or _first_shape(root, calls)
        channel = _channel_dimension(root, calls, known)
        reader = _Reader(model, root, Evaluator(root, calls, known), activations or {}, channel)
        with RandomGenerators(root).preserved(seed=0):
            for node in calls.nodes:
                reader.evaluator.run(node)
                reader.take(node)
        nodes = tuple(_pooled_first(reader.nodes))
        if known is None:
            raise InputError(
                "predict needs input_shape (without the batch), such as (3, 32, 32), or data: the "
                "model does not begin with a linear layer."
            )
        graph = Graph(nodes, known, channel)
        inputs = torch.randn(SAMPLES, *known, generator=torch.Generator().manual_seed(0))
        if trace_differs(root, calls, inputs):
            raise NoClosureError(
                f"the forward pass of {type(model).__name__} gives other outputs than the calls "
                "read from it (it may branch on the type of a tensor)",
                MEASURE,
            )
    return graph


def _check_shape(root: nn.Module, shape: tuple[int, ...]) -> None:
    """Raise if the model does not take inputs of this shape, naming the layer that does not."""
    if any(is_lazy(each) for each in (*root.parameters(), *root.buffers())):
        return  # a call would give them values
    draws = torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(0))
    inputs = follow_model((draws,), root)
    try:
        with torch.no_grad(), RandomGenerators(root).preserved(seed=0), FitCheck(root, inputs):
            root(*inputs)
    except MisfitError as error:
        layer, _, _ = str(error).partition(": ")[2].partition(", from a batch")
        raise MisfitError(
            f"an input_shape of {shape} does not fit the model: {layer}; give the shape of one "
            "sample, without the batch."
        ) from error
    except Exception:  # a model may raise anything; what else is wrong, reading finds out
        return


def _trace_copy(model: nn.Module) -> tuple[nn.Module, fx.Graph]:
    """Return a copy of the model, and the calls of its forward pass."""
    kind = type(model).__name__
    try:
        root = copy_module(model).eval()
    except StateError as error:
        reason = str(error).partition(";")[0]
        raise NoClosureError(f"the theory cannot read {kind}: {reason}", MEASURE) from error
    try:
        with torch.enable_grad():  # to find the calls that run without
            calls = record_calls(root, lambda m: is_known_layer(m) or own_norm(m) is not None)
    except UntraceableError as error:
        reason = error.reason or "it may branch on values, or take several inputs"
        if error.path:
            kind = f"{error.path} ({type(model.get_submodule(error.path)).__name__})"
        what = f"the forward pass of {kind} cannot be traced ({reason})"
        raise NoClosureError(what, MEASURE) from error
    _call_numbers(calls[0])
    return root, calls[0]


def _call_numbers(calls: fx.Graph) -> None:
    """Replace methods of sizes, which are traced as tensors, by functions of numbers."""
    sizes: set[fx.Node] = set()
    for node in calls.nodes:
        inputs = node.all_input_nodes
        if _asks_size(node):
            sizes.add(node)
        elif inputs and sizes.issuperset(inputs) and node.op in ("call_function", "call_method"):
            sizes.add(node)
            known = getattr(operator, _OF_NUMBERS.get(str(node.target), str(node.target)), None)
            if node.op == "call_method" and known is not None:
                node.op, node.target = "call_function", known


def _asks_size(node: fx.Node) -> bool:
    """Return whether a call returns the shape of something."""
    return node.target in ("size", "dim") or (
        call_name(node) == "getattr" and node.args[1] in ("shape", "ndim")
    )


class _Reader(Builder):
    """Reads calls one by one.

    Args:
        model: the user's model, to look up names.
        root: the copy whose forward pass was traced.
        evaluator: knows the sizes of all values.
        activations: further activation modules by type.
        channel: dimension of the channels in the input, without the batch.
    """

    def __init__(
        self,
        model: nn.Module,
        root: nn.Module,
        evaluator: Evaluator,
        activations: dict[type, Any],
        channel: int,
    ) -> None:
        super().__init__(model, root, evaluator)
        self.activations = activations
        self.channel = channel
        self._seen: set[str] = set()
        self._weights: dict[Any, str] = {}  # names of layers by the address of their weights

    def take(self, node: fx.Node) -> None:
        """Read one call of the forward pass."""
        if node.op == "placeholder":
            self._take_input(node)
        elif node.op == "call_module":
            self._take_module(node)
        elif node.op in ("call_function", "call_method"):
            self._take_function(node)
        elif node.op == "get_attr":
            self.values[node] = TENSOR  # an error only if it is used
        else:
            self._check_output(node.args[0])

    def _take_input(self, node: fx.Node) -> None:
        if self.values:
            self.values[node] = SECOND_INPUT
            return
        shape = self.evaluator.shape(node)
        layout = None if shape is None else Layout.fresh(shape, self.channel + 1)
        self.values[node] = Units(INPUT, layout)

    def _check_output(self, value: Any) -> None:
        units = self.units(value)
        if not isinstance(value, fx.Node):
            raise refused("the output", "anything but a single tensor")
        if units is None:
            raise refused("the output", "a value that is not computed from the model's input")
        if units.node == INPUT:
            raise refused("the output", "the model's input as it came")
        if units.layout is not None:
            found = self.arrange("the output", units, (min(1, units.layout.index.dim() - 1),))
            units = units if found is None else found[0]
        if units.node != len(self.nodes) - 1:
            raise refused("the output", "another value than the last one computed")

    def _take_module(self, node: fx.Node) -> None:
        name = str(node.target)
        module = self.root.get_submodule(name)
        held = [*module.parameters(), *module.buffers()]
        if any(is_lazy(each) or each.is_meta or not each.numel() for each in held):
            raise refused(name, f"a {type(module).__name__} whose weights have no values")
        if isinstance(module, transformer.MODULES):
            self._take_transformer(node, name, module)
            return
        operation = operation_of_module(module, self.activations)
        if isinstance(operation, Unsupported):
            raise refused(name, f"the module {type(module).__name__}")
        own = self.model.get_submodule(name)  # with its flag; the copy is in eval mode
        if isinstance(operation, Weighted):
            self._take_weights(name, own)
        reason = unreadable(own, self.model)
        if reason is not None:
            raise refused(name, f"a {type(module).__name__} {reason}")
        if self._is_off(operation, own):
            operation = None
        if isinstance(module, _MOVING_MODULES) and self._moved(node, name, module):
            return
        self._apply(node, name, operation)

    def _take_transformer(self, node: fx.Node, name: str, module: nn.Module) -> None:
        """Read a module of several layers."""
        for inner, each in self.model.get_submodule(name).named_modules(prefix=name):
            reason = unreadable(each, self.model)
            if reason is not None:
                raise refused(inner, f"a {type(each).__name__} {reason}")
        if name in self._seen:
            raise refused(name, f"a {type(module).__name__} that is called twice")
        self._seen.add(name)
        self.values[node] = transformer.of_module(self, node, name, module)

    def _moved(self, node: fx.Node, name: str, module: nn.Module) -> bool:
        """Read a module that only moves elements, if the layout of its input is known."""
        units = self.units(node.args[0]) if node.args else None
        if units is None or units.layout is None or self.evaluator.shape(node) is None:
            return False
        index = module(units.layout.index)
        layout = replace(units.layout, index=index)
        self.values[node] = flattened(self, name, Units(units.node, layout))
        return True

    def _take_weights(self, name: str, module: nn.Module) -> None:
        """Refuse weights that are used twice."""
        kind = type(module).__name__
        weight = module.get_parameter("weight") if not is_parametrized(module) else None
        first = self._weights.setdefault(name if weight is None else weight.data_ptr(), name)
        if name in self._seen:
            raise refused(name, f"a {kind} that is called twice")
        if first != name:
            raise refused(name, f"a {kind} whose weights are those of {first}")
        self._seen.add(name)

    def _take_function(self, node: fx.Node) -> None:
        name = call_name(node)
        if self._holds_sizes(node):
            self.values[node] = SIZE
            return
        inputs = node.all_input_nodes
        if all(self.values[each] in (TENSOR, SIZE) for each in inputs) and inputs:
            self.values[node] = TENSOR
            return
        if not node.meta.get(GRADIENTS, True):
            raise refused(self.where(node), f"the call of {name} in a function without gradients")
        found = self._rearranged_or_combined(node, name)
        if found is not None:
            self.values[node] = found
            return
        operation = operation_of_call(name, node)
        if isinstance(operation, Unsupported):
            self._refuse_tensors(node)
            raise refused(self.where(node), words_of_call(name, node))
        if self._is_off(operation, self.model.get_submodule(str(node.meta.get(CALLER, "")))):
            operation = None
        self._apply(node, self.name(node), operation)

    def _is_off(self, operation: object, owner: nn.Module) -> bool:
        """Return whether it is dropout of a module in eval mode, in a model that trains."""
        return isinstance(operation, Dropout) and self.model.training and not owner.training

    def _rearranged_or_combined(self, node: fx.Node, name: str) -> Any:
        """Return the value of a call that depends on layouts, None for other calls."""
        if any(self.values[each] is SECOND_INPUT for each in node.all_input_nodes):
            raise refused(self.name(node), "a second input")
        found = attention.of_call(self, node, name)
        if found is None and name in RELABELLING:
            found = relabel(self, node)
        if found is None and name in HANDLERS:
            found = HANDLERS[name](self, node)
        return found

    def _refuse_tensors(self, node: fx.Node) -> None:
        for each in node.all_input_nodes:
            if self.values[each] is TENSOR:
                raise self.refused_tensor(each, self.name(node))

    def _holds_sizes(self, node: fx.Node) -> bool:
        """Return whether a call only returns the shape of something, or computes with sizes."""
        inputs = node.all_input_nodes
        return _asks_size(node) or all(
            self.values.get(each) in (SIZE, SECOND_INPUT) for each in inputs
        )

    def _apply(self, node: fx.Node, name: str, operation: Operation | Addition | None) -> None:
        """Add an operation to the graph, after what it needs to find its channels."""
        self._refuse_tensors(node)
        values = [self.values[each] for each in node.args if isinstance(each, fx.Node)]
        values += [self.values[each] for each in node.kwargs.values() if isinstance(each, fx.Node)]
        values = [each for each in values if each is not SIZE]
        if SECOND_INPUT in values:
            raise refused(name, "a second input")
        if isinstance(operation, Addition) and len(values) == 1:
            raise refused(name, "a sum with a number")
        wanted = 2 if isinstance(operation, Addition) else 1
        if len(values) != wanted:
            raise refused(name, f"a call with {len(values)} inputs")
        if operation is None and isinstance(values[0], attention.Logits):
            self.values[node] = values[0]
            return
        if not all(isinstance(each, Units) for each in values):
            raise refused(name, "a value that is not the output of a layer")
        if operation is None:
            self.values[node] = values[0]
        elif isinstance(operation, Addition) or values[0].layout is None:
            self.values[node] = Units(self.add(name, operation, [each.node for each in values]))
        else:
            self.values[node] = self._arranged(node, name, operation, values[0])

    def _arranged(self, node: fx.Node, name: str, operation: Operation, units: Units) -> Units:
        """Add an operation to a field in the form that it needs."""
        layout, shape = units.layout, self.evaluator.shape(node)
        assert layout is not None
        if isinstance(operation, _ELEMENTWISE):
            return Units(self.add(name, operation, (units.node,)), layout)
        if shape is None:  # the layer does not take the tensor; the graph finds out why
            return Units(self.add(name, operation, (units.node,)))
        dimensions: tuple[int, ...] = (-1 if isinstance(operation, Linear) else 1,)
        if isinstance(operation, TokenNorm):
            dimensions = (operation.dimension,)
        if isinstance(operation, SampleNorm) and operation.shape is not None:
            dimensions = tuple(range(-len(operation.shape), 0))
            operation, whole = self._over(operation, layout, dimensions)
            if whole:
                return Units(self.add(name, operation, (units.node,)), layout)
        found = self.arrange(name, units, dimensions)
        if found is None:
            raise refused(name, f"{type(operation).__name__} over positions instead of channels")
        at, arrangement = found
        made: Layout | None
        if isinstance(operation, Linear):
            operation = replace(operation, each_position=True)
            made = arrangement.layout_of(operation.outputs)
        elif isinstance(operation, TokenNorm):
            made = at.layout
        else:
            made = Layout.fresh(shape)
        index = self.add(name, operation, (at.node,))
        if isinstance(operation, Linear):
            module = self.root.get_submodule(name)
            self.linear[index] = (module.weight, module.bias)  # type: ignore[assignment]
        return Units(index, made)

    def _over(
        self, norm: SampleNorm, layout: Layout, dimensions: tuple[int, ...]
    ) -> tuple[Operation, bool]:
        """Return a layer normalization by what it averages over, and whether that is a sample."""
        if not layout.positions and layout.is_complete:
            return norm, True
        arrangement = layout.arranged(dimensions)
        if arrangement is not None and len(arrangement.units) == 1 and layout.is_complete:
            return replace(norm, shape=None), True
        affine = (norm.gamma, norm.beta, norm.beta_variance, norm.eps)
        return TokenNorm(*affine), False


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
            raise refused(node.name, f"max pooling after {before.name}")
        nodes[source] = replace(node, inputs=before.inputs)
        nodes[index] = replace(before, inputs=(source,))
    return [_after_batch_norm(node, nodes) for node in nodes]


def _after_batch_norm(node: Node, nodes: list[Node]) -> Node:
    """Return max pooling that knows whether its input comes from BatchNorm."""
    source = node.inputs[0]
    if source == INPUT or not isinstance(node.operation, MaxPool):
        return node
    normalized = isinstance(nodes[source].operation, BatchNorm)
    return replace(node, operation=replace(node.operation, after_batch_norm=normalized))


def _first_shape(root: nn.Module, calls: fx.Graph) -> tuple[int, ...] | None:
    """Return the shape of the input, if the first weights are those of a linear layer."""
    modules = (root.get_submodule(str(n.target)) for n in calls.nodes if n.op == "call_module")
    first = next((each for each in modules if is_known_layer(each)), None)
    return (first.in_features,) if isinstance(first, nn.Linear) else None


def _channel_dimension(root: nn.Module, calls: fx.Graph, shape: tuple[int, ...] | None) -> int:
    """Return the dimension of a sample that a first linear layer takes, else the first one."""
    if shape is None or len(shape) < 2:
        return 0
    user = next((each for each in calls.nodes if _takes_values_of_input(each)), None)
    if user is None or user.op != "call_module":
        return 0
    module = root.get_submodule(str(user.target))
    norm = own_norm(module)
    last = isinstance(module, (nn.Linear, nn.RMSNorm, *transformer.MODULES)) or (
        isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1
    )
    return len(shape) - 1 if last or (norm is not None and norm.feature_axis == -1) else 0


def _takes_values_of_input(node: fx.Node) -> bool:
    sizes = node.target in ("size", "dim") or call_name(node) == "getattr"
    return not sizes and any(each.op == "placeholder" for each in node.all_input_nodes)
