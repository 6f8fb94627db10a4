"""The modules a network runs one after the other, if that is all it does."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Container, Mapping
from typing import Any, TypeAlias

from torch import fx, nn
from torch.nn.modules import module as every_module

from normscope.curvature.chain_functions import MODULES, Reshape

__all__ = ["NotAChainError", "Step", "steps_of"]

#: qualified name of a module (empty for a function that stands for it), and the module
Step: TypeAlias = tuple[str, nn.Module]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class NotAChainError(Exception):
    """Says why a model cannot be read as a chain; never leaves the chain's own modules."""


def steps_of(model: nn.Module, known: Container[type[nn.Module]]) -> tuple[list[Step], bool]:
    """The modules that the model runs one after the other, each on the last one's output.

    Args:
        model: a private copy: its forward may be called on stand-ins for tensors.
        known: classes of modules to be taken as one step.

    Returns:
        The steps, and whether they are certain: a tree of `nn.Sequential` does nothing else, but
        the trace of a forward may have missed what acts on derivatives only.

    Raises:
        NotAChainError: if the model does anything else.
    """
    _refuse_hooks(model)
    flattened = _flattened("", model, known)
    steps = _traced(model, known) if flattened is None else flattened
    modules = [id(module) for _, module in steps]
    if len(set(modules)) < len(modules):
        raise NotAChainError("a module runs twice")
    return steps, flattened is not None


def _refuse_hooks(model: nn.Module) -> None:
    if any(getattr(every_module, f"_global{hooks}") for hooks in _HOOKS):
        raise NotAChainError("there are hooks on all modules")
    for name, module in model.named_modules():
        if any(module.__dict__.get(hooks) for hooks in _HOOKS):
            raise NotAChainError(f"{name!r} has hooks")
        if "forward" in module.__dict__ or module._compiled_call_impl is not None:
            raise NotAChainError(f"{name!r} has a forward of its own")
        if type(module).__call__ is not nn.Module.__call__:
            raise NotAChainError(f"{name!r} is called in a way of its own")


def _flattened(
    name: str, module: nn.Module, known: Container[type[nn.Module]]
) -> list[Step] | None:
    """The leaves of a tree of `nn.Sequential`, in order; None if there is another container."""
    if type(module) in known:
        return [(name, module)]
    if type(module).forward is not nn.Sequential.forward or len(module._modules) == 0:
        return None
    steps: list[Step] = []
    for child_name, child in module.named_children():
        below = _flattened(f"{name}.{child_name}" if name else child_name, child, known)
        if below is None:
            return None
        steps += below
    if len(list(module.named_children())) < len(module._modules):
        return None  # the same child twice
    return steps


class _Tracer(fx.Tracer):
    """Follows a model's forward down to the modules that are known."""

    def __init__(self, known: Container[type[nn.Module]]) -> None:
        super().__init__()
        self._known = known

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is one step."""
        return type(m) in self._known or super().is_leaf_module(m, module_qualified_name)


def _traced(model: nn.Module, known: Container[type[nn.Module]]) -> list[Step]:
    """The steps of a forward that is a straight line."""
    try:
        graph = _Tracer(known).trace(model)
    except Exception as error:  # whatever a foreign forward raises on stand-ins
        raise NotAChainError(f"it cannot be traced: {error}") from error
    modules = dict(model.named_modules())
    steps: list[Step] = []
    current: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder" and current is None:
            current = node
        elif node.op == "output" and node.args == (current,):
            return steps
        elif current is not None and _is_size(node, current):
            continue
        elif current is not None and node.args and node.args[0] is current:
            steps.append(_step(node, current, modules))
            current = node
        else:
            break
    raise NotAChainError("its forward is not a straight line")


def _step(node: fx.Node, current: fx.Node, modules: Mapping[str, nn.Module]) -> Step:
    options = node.args[1:]
    if node.op == "call_module" and not options and not node.kwargs:
        return str(node.target), modules[str(node.target)]
    if node.op == "call_method" and node.target in ("view", "reshape"):
        sizes = options[0] if options and isinstance(options[0], tuple | list) else options
        return "", Reshape(*(_size(size, current) for size in sizes))
    make = MODULES.get(node.target) if node.op in ("call_function", "call_method") else None
    if make is None or current in node.all_input_nodes[1:] or len(node.all_input_nodes) > 1:
        raise NotAChainError(f"{node.target} is not known")
    try:
        arguments = inspect.signature(make).bind(*options, **node.kwargs)
    except TypeError as error:
        raise NotAChainError(f"{node.target} is called with other arguments") from error
    return "", make(*arguments.args, **arguments.kwargs)


def _is_size(node: fx.Node, current: fx.Node) -> bool:
    """Whether a node is the shape of the present value, or its number of samples."""
    of_current = bool(node.args) and node.args[0] is current
    if node.op == "call_method" and node.target == "size":
        return of_current and not node.kwargs
    if node.op == "call_function" and node.target is getattr:
        return of_current and node.args[1] == "shape"
    if node.op == "call_function" and node.target is operator.getitem:
        shape = node.args[0]
        return isinstance(shape, fx.Node) and _is_size(shape, current)
    return False


def _size(size: Any, current: fx.Node) -> int | None:
    """A constant size; None for the number of samples of the present value."""
    if isinstance(size, int):
        return size
    if isinstance(size, fx.Node) and _is_size(size, current) and size.args[1:] == (0,):
        return None
    raise NotAChainError("a reshape depends on the shape in a way not known")
