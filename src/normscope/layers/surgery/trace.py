"""Trace a forward pass into a graph of calls, without data.

The forward pass of a copy of the model runs on symbolic tensors: a tensor subclass without values
that records every operation in a ``torch.fx.Graph``. The call of a known layer is one node. Only
the traced copy is changed, so other threads are not affected. (``torch.fx.Tracer.trace`` replaces
methods of ``nn.Module`` in the whole process while it runs.)
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import is_tensor_method_or_property
from torch.utils import _pytree as pytree

from normscope.layers.kinds import is_batch_norm, is_lp_norm
from normscope.layers.surgery.copies import copy_module, undisturbed
from normscope.problem.global_state import FunctionMode
from normscope.problem.hooks import defining_module, has_forward_hooks
from normscope.problem.isolation import RandomGenerators

PLAIN_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_IDENTITY_IN_EVAL = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
# Results that do not depend on the values of a tensor: shape, dtype, device, dimensions, flags.
_NO_VALUES = (torch.Size, torch.dtype, torch.device, torch.layout, int)
# Methods whose result must be a Python number or string, or that write values.
_NEED_VALUES = {
    *("__bool__", "__len__", "__index__", "__int__", "__float__", "__complex__", "__contains__"),
    *("__repr__", "__format__", "__setitem__", "__set__"),
}


def is_plain_layer(module: nn.Module) -> bool:
    """Return whether the module computes what torch's linear or convolution layer does.

    Args:
        module: any module.

    Returns:
        False also for a subclass with another forward pass.

    >>> is_plain_layer(nn.Conv2d(1, 1, 1)), is_plain_layer(nn.ReLU())
    (True, False)
    """
    if not isinstance(module, PLAIN_LAYERS) or "forward" in vars(module):
        return False
    methods = [getattr(type(module), name, None) for name in ("forward", "_conv_forward")]
    return all(
        method is None or defining_module(method).startswith("torch.nn.") for method in methods
    )


def trace(
    module: nn.Module,
    open_modules: bool = True,
    is_leaf: Callable[[nn.Module], bool] | None = None,
) -> tuple[fx.Graph, set[int]] | None:
    """Return the calls of a forward pass, and the tensors that it uses outside of them.

    Optional arguments keep their defaults: left open, ``if mask is None`` would take the wrong
    branch.

    Args:
        module: the module to trace, in eval mode; attributes for constants may be added to it.
        open_modules: whether to trace inside the modules that it calls, except known layers.
        is_leaf: whether a module outside of ``torch.nn`` is a known layer; None for normalization
            layers and subclasses of linear and convolution layers.

    Returns:
        The graph, and ids of the tensors that are used outside of module calls; None if the
        forward pass cannot be traced, e.g. because it branches on values.
    """
    recorder, reads = _Recorder(module, is_leaf or _is_known_layer), _Reads()
    try:
        parameters = inspect.signature(module.forward).parameters.values()
        required = [p for p in parameters if p.default is p.empty and p.kind not in _VARIADIC]
        inputs = {p.name: recorder.node("placeholder", p.name) for p in required}
        by_name = {p.name: inputs.pop(p.name) for p in required if p.kind is p.KEYWORD_ONLY}
        with RandomGenerators().preserved(), recorder.leaf_calls(open_modules), reads:
            output = module.forward(*inputs.values(), **by_name)
        recorder.graph.output(recorder.create_arg(output))
    except Exception:  # user code that gets symbolic tensors may fail in any way
        return None
    return recorder.graph, reads.found | recorder.reads


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _SymbolicTensor(Tensor):
    """The result of a recorded call. It has no values; operations on it are recorded."""

    traced_node: fx.Node
    traced_by: _Recorder

    @staticmethod
    def __new__(cls, recorder: _Recorder, source: fx.Node) -> _SymbolicTensor:
        # A scalar integer, so that torch's functions accept it also as a size or a dimension.
        tensor: _SymbolicTensor = Tensor._make_wrapper_subclass(cls, (), dtype=torch.int64)
        tensor.traced_by, tensor.traced_node = recorder, source
        return tensor

    # Allows tuple unpacking only, whose length is known.
    __iter__ = fx.Proxy.__iter__

    @property
    def values(self) -> Any:  # of a result like that of torch.max
        """The values of a result that also has indices."""
        return self.traced_by.node("call_function", getattr, (self, "values"))

    @property
    def indices(self) -> Any:
        """The indices of a result that also has values."""
        return self.traced_by.node("call_function", getattr, (self, "indices"))

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        recorder = next(leaf.traced_by for leaf in leaves if type(leaf) is _SymbolicTensor)
        return recorder.record(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # declared without cls
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        raise TypeError(f"{func} needs values, which a symbolic tensor does not have")


class _Recorder(fx.Tracer):
    """Records calls in a graph. Of ``fx.Tracer`` it uses the conversion of arguments only."""

    def __init__(self, root: nn.Module, is_known: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.root = root
        self._is_known = is_known
        self.graph = fx.Graph()
        self.reads: set[int] = set()  # ids of tensors that are arguments
        self.tensor_attrs: dict[Any, str] = {
            value: f"{prefix}.{name}" if prefix else name
            for prefix, module in root.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, Tensor)
        }

    def node(
        self, kind: str, target: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> _SymbolicTensor:
        """Record a node and return its symbolic result."""
        converted = tuple(self.create_arg(arg) for arg in args)
        named = {name: self.create_arg(value) for name, value in (kwargs or {}).items()}
        return _SymbolicTensor(self, self.create_node(kind, target, converted, named))

    def record(self, function: Any, args: tuple[Any, ...], kwargs: Any) -> _SymbolicTensor:
        """Record a function, method or attribute of tensors."""
        name = getattr(function, "__name__", "")
        if name in _NEED_VALUES:
            raise TypeError(f"{name} needs values, which a symbolic tensor does not have")
        if name == "__get__":
            return self.node("call_function", getattr, (args[0], function.__self__.__name__))
        if not is_tensor_method_or_property(function):
            return self.node("call_function", function, args, kwargs)
        named = getattr(operator, name.strip("_"), None) if name.startswith("__") else None
        if named is not None:
            return self.node("call_function", named, args, kwargs)
        return self.node("call_method", name, args, kwargs)

    def create_arg(self, a: Any) -> Any:
        """Convert an argument of a call to what the graph holds."""
        if type(a) is _SymbolicTensor:
            return a.traced_node
        if isinstance(a, Tensor):
            self.reads.add(id(a))
        return super().create_arg(a)

    @contextmanager
    def leaf_calls(self, open_modules: bool) -> Iterator[None]:
        """Record calls of leaf modules, hooks included, instead of executing them."""
        leaves = [
            (name, module)
            for name, module in self.root.named_modules()
            if module is not self.root and (not open_modules or self._is_leaf(module))
        ]
        for name, module in leaves:
            # nn.Module.__call__ calls this instead of hooks and forward, if it is set.
            vars(module)["_compiled_call_impl"] = functools.partial(self._call_leaf, name)
        try:
            yield
        finally:
            for _, module in leaves:
                vars(module).pop("_compiled_call_impl", None)

    def _call_leaf(self, name: str, *args: Any, **kwargs: Any) -> _SymbolicTensor:
        return self.node("call_module", name, args, kwargs)

    def _is_leaf(self, module: nn.Module) -> bool:
        return self._is_known(module) or self.is_leaf_module(module, "")  # those of torch.nn


def _is_known_layer(module: nn.Module) -> bool:
    return is_plain_layer(module) or is_batch_norm(module) or is_lp_norm(module)


class _Reads(FunctionMode):
    """Collects ids of the tensors whose values are used while the mode is active.

    Leaf modules are not executed while tracing, so this sees what happens outside of their calls,
    also if it is not in the graph, such as a penalty on ``self.parameters()``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, _NO_VALUES):
            self.found |= {id(leaf) for leaf in pytree.tree_leaves((args, kwargs))}
        return result


def chain_of_calls(module: nn.Module) -> list[str] | None:
    """Return the modules that a forward pass calls, if each takes the output of the one before.

    Args:
        module: a module with one input; it is copied, not changed.

    Returns:
        The names in order; None if the forward pass branches or cannot be traced.

    >>> chain_of_calls(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    ['0', '1']
    """
    with undisturbed(module):
        result = trace(copy_module(module).eval(), open_modules=False)
    if result is None:
        return None
    _, *rest = result[0].nodes
    if any(node.all_input_nodes != [node.prev] for node in rest):
        return None
    return [str(node.target) for node in rest if node.op == "call_module"]


@dataclass
class CallGraph:
    """One traced forward pass.

    Attributes:
        prefix: qualified name of the traced module inside the model, "" for the model itself.
        root: the traced module (a copy).
        graph: its calls.
        reads: ids of the tensors that the forward pass uses outside of module calls.
        whole: whether this is the forward pass of the whole model.
        assumed: whether the module is assumed to be called as a whole, without evidence.
        dissolved: nodes whose modules have become the identity.
    """

    prefix: str
    root: nn.Module
    graph: fx.Graph
    reads: set[int]
    whole: bool = False
    assumed: bool = False
    dissolved: set[fx.Node] = field(default_factory=set)

    def module_calls(self) -> list[fx.Node]:
        """Return the nodes that call a module, in order of execution."""
        return [node for node in self.graph.nodes if node.op == "call_module"]

    def name(self, node: fx.Node) -> str:
        """Return the qualified name, inside the model, of the module that a node calls."""
        return f"{self.prefix}.{node.target}" if self.prefix else str(node.target)

    def module(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node calls, None if it calls something else."""
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def reads_parameters(self, node: fx.Node) -> bool:
        """Return whether the forward pass uses a tensor of the node's module outside its call."""
        module = self.root.get_submodule(str(node.target))
        return any(id(each) in self.reads for each in (*module.parameters(), *module.buffers()))

    def is_identity(self, node: fx.Node) -> bool:
        """Return whether the node returns its input unchanged in eval mode."""
        module = self.module(node)
        if not isinstance(module, _IDENTITY_IN_EVAL) or has_forward_hooks(module):
            return node in self.dissolved
        return defining_module(type(module).forward).startswith("torch.nn.")

    def flattens(self, node: fx.Node) -> bool:
        """Return whether the node flattens all dimensions after the first."""
        module = self.module(node)
        if module is not None:
            return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
        starts = [*node.args[1:], *node.kwargs.values()]
        return node.target in (torch.flatten, "flatten") and starts in ([1], [1, -1])

    def adjacent(self, first: fx.Node, last: fx.Node) -> bool:
        """Return whether only identities and flattenings are executed between two nodes."""
        node = first.next
        while node is not last and (self.is_identity(node) or self.flattens(node)):
            node = node.next
        return node is last

    def between(self, first: fx.Node, last: fx.Node) -> list[fx.Node]:
        """Return the nodes executed between two."""
        nodes = list(self.graph.nodes)
        return nodes[nodes.index(first) + 1 : nodes.index(last)]


def call_graphs(model: nn.Module) -> list[CallGraph]:
    """Return the model's graph, or those of its ``nn.Sequential`` parts if it has none.

    Args:
        model: any model; it is copied, not changed.

    Returns:
        One graph with prefix "" for the whole model; else one for each outermost part that can be
        traced, which is assumed to be called only as a whole.
    """
    root = copy_module(model).eval()
    calls = trace(root)
    if calls is not None:
        return [CallGraph("", root, *calls, whole=True)]
    return _graphs_of_parts("", root, assumed=False)


def _graphs_of_parts(prefix: str, module: nn.Module, assumed: bool) -> list[CallGraph]:
    """Return the graphs inside a module that cannot be traced."""
    found = []
    sequential = type(module).forward is nn.Sequential.forward
    if sequential and (calls := trace(module, open_modules=False)) is not None:
        found.append(CallGraph(prefix, module, calls[0], set(), assumed=assumed))
    for name, child in module.named_children():
        name = f"{prefix}.{name}" if prefix else name
        unseen = assumed or not sequential
        callable_whole = sequential or type(child).forward is nn.Sequential.forward
        inside = trace(child) if callable_whole else None
        if inside is not None:
            found.append(CallGraph(name, child, *inside, assumed=unseen))
        else:
            found += _graphs_of_parts(name, child, unseen)
    return found
