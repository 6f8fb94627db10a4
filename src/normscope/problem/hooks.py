"""Hooks and replaced methods: whether a module still computes what its class says."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as torch_module

_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether hooks of the module may change its input or output.

    Hooks of all modules are not counted: see `has_global_hooks`.

    >>> has_forward_hooks(nn.ReLU())
    False
    """
    return any(vars(module).get(hooks) for hooks in _FORWARD_HOOKS)


def has_global_hooks(backward: bool = True) -> bool:
    """Return whether hooks are registered for all modules of the process.

    Args:
        backward: whether hooks of the backward pass count too.
    """
    names = (*_FORWARD_HOOKS, *(_BACKWARD_HOOKS if backward else ()))
    return any(getattr(torch_module, f"_global{hooks}") for hooks in names)


def is_unchanged(module: nn.Module) -> bool:
    """Return whether calling the module runs the ``forward`` of its class and nothing else.

    False if it has hooks, if there are global ones, or if its ``forward`` or ``__call__`` was
    replaced, compiled or overridden by code outside the file of its class.

    >>> loss = nn.MSELoss()
    >>> is_unchanged(loss)
    True
    >>> loss.forward = lambda output, target: output.sum()
    >>> is_unchanged(loss)
    False
    """
    own = vars(module)
    if has_global_hooks() or any(own.get(hooks) for hooks in (*_FORWARD_HOOKS, *_BACKWARD_HOOKS)):
        return False
    if "forward" in own or own.get("_compiled_call_impl") is not None:
        return False
    return _is_defined_with_its_class(type(module)) and type(module).__call__ is _CALL


def _is_defined_with_its_class(kind: type[nn.Module]) -> bool:
    """Return whether the class's ``forward`` comes from the file of the class that defines it."""
    owner = next(base for base in kind.__mro__ if "forward" in vars(base))
    code = getattr(vars(owner)["forward"], "__globals__", {})
    return code.get("__name__") == owner.__module__  # functools.wraps does not change the globals


_CALL = nn.Module.__call__  # as torch defined it; torch.fx replaces it while it traces
