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
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import is_tensor_method_or_property
from torch.utils import _pytree as pytree

from normscope.problem.global_state import FunctionMode
from normscope.problem.isolation import RandomGenerators

# Results that do not depend on the values of a tensor: shape, dtype, device, dimensions, flags.
_NO_VALUES = (torch.Size, torch.dtype, torch.device, torch.layout, int)
CALLER = "caller"  # key of a node's meta: qualified name of the module that makes the call
GRADIENTS = "gradients"  # key of a node's meta: whether autograd records the call
# Methods whose result must be a Python number or string, or that write values, and what calls them.
_NEED_VALUES = {
    "__bool__": "it branches on the values of a tensor",
    "__len__": "it calls len() of a tensor, where x.shape[0] can be traced",
    **dict.fromkeys(
        ("__index__", "__int__", "__float__", "__complex__", "__contains__"),
        "it converts a tensor to a number",
    ),
    **dict.fromkeys(("__repr__", "__format__"), "it converts a tensor to a string"),
    **dict.fromkeys(("__setitem__", "__set__"), "it writes into a tensor"),
}


class UntraceableError(Exception):
    """A forward pass that cannot be recorded.

    Args:
        path: qualified name of the innermost module whose forward pass failed, "" for the model.
        reason: what it does; "" if it raised an error of its own.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class _NeedsValuesError(TypeError):
    """Raised where the forward pass needs the values of a symbolic tensor."""


def trace(
    module: nn.Module, is_leaf: Callable[[nn.Module], bool]
) -> tuple[fx.Graph, set[int]] | None:
    """Return the calls of a forward pass, and the tensors that it uses outside of them.

    Optional arguments keep their defaults: left open, ``if mask is None`` would take the wrong
    branch.

    Args:
        module: the module to trace, in eval mode; attributes for constants may be added to it.
        is_leaf: whether the call of a module is one node; it always is for layers of ``torch.nn``.

    Returns:
        The graph, and ids of the tensors that are used outside of module calls; None if the
        forward pass cannot be traced, e.g. because it branches on values.
    """
    try:
        return record_calls(module, is_leaf)
    except UntraceableError:
        return None


def record_calls(
    module: nn.Module, is_leaf: Callable[[nn.Module], bool]
) -> tuple[fx.Graph, set[int]]:
    """Return what `trace` returns.

    Raises:
        UntraceableError: if the forward pass cannot be traced.
    """
    recorder, reads = _Recorder(module, is_leaf), _Reads()
    try:
        parameters = inspect.signature(module.forward).parameters.values()
        required = [p for p in parameters if p.default is p.empty and p.kind not in _VARIADIC]
        inputs = {p.name: recorder.node("placeholder", p.name) for p in required}
        by_name = {p.name: inputs.pop(p.name) for p in required if p.kind is p.KEYWORD_ONLY}
        with RandomGenerators().preserved(), recorder.leaf_calls(), reads:
            output = module.forward(*inputs.values(), **by_name)
        recorder.graph.output(recorder.create_arg(output))
    except Exception as error:  # user code that gets symbolic tensors may fail in any way
        reason = str(error) if isinstance(error, _NeedsValuesError) else ""
        raise UntraceableError(recorder.failed or "", reason) from error
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

    def __init__(self, root: nn.Module, is_leaf: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.root = root
        self._is_leaf = is_leaf
        self.graph = fx.Graph()
        self.reads: set[int] = set()  # ids of tensors that are arguments
        self._callers = [""]  # qualified names of the modules whose forward pass is running
        self.failed: str | None = None  # the innermost of them that raised an error
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
        made = self.create_node(kind, target, converted, named)
        made.meta[CALLER] = self._callers[-1]
        made.meta[GRADIENTS] = torch.is_grad_enabled()
        return _SymbolicTensor(self, made)

    def record(self, function: Any, args: tuple[Any, ...], kwargs: Any) -> _SymbolicTensor:
        """Record a function, method or attribute of tensors."""
        name = getattr(function, "__name__", "")
        if name in _NEED_VALUES:
            raise _NeedsValuesError(_NEED_VALUES[name])
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
    def leaf_calls(self) -> Iterator[None]:
        """Record calls of leaf modules, hooks included, instead of executing them."""
        replaced = []
        for name, module in self.root.named_modules():
            if module is self.root:
                continue
            # nn.Module.__call__ calls this instead of hooks and forward, if it is set.
            if self._is_leaf(module) or self.is_leaf_module(module, name):
                call = functools.partial(self._call_leaf, name)
            elif vars(module).get("_compiled_call_impl") is None:
                call = functools.partial(self._call_inner, name, module)
            else:
                continue
            vars(module)["_compiled_call_impl"] = call
            replaced.append(module)
        try:
            yield
        finally:
            for module in replaced:
                vars(module).pop("_compiled_call_impl", None)

    def _call_inner(self, name: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call a module that is not a leaf, so that the calls inside carry its name."""
        self._callers.append(name)
        try:
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        except Exception:
            self.failed = self.failed or name
            raise
        finally:
            self._callers.pop()

    def _call_leaf(self, name: str, *args: Any, **kwargs: Any) -> _SymbolicTensor:
        return self.node("call_module", name, args, kwargs)


class _Reads(FunctionMode):
    """Collects ids of the tensors whose values are used while the mode is active.

    Leaf modules are not executed while tracing, so this sees what happens outside of their calls,
    also if it is not in the graph, such as a penalty on ``self.parameters()``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()

    def call(self, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a function; note its arguments unless the result does not depend on values."""
        result = function(*args, **options)
        if not isinstance(result, _NO_VALUES):
            self.found |= {id(leaf) for leaf in pytree.tree_leaves((args, options))}
        return result
