"""Hooks and replaced methods: whether a module still computes what its class says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
HOOKS = (*_FORWARD_HOOKS, *_BACKWARD_HOOKS)
"""Attributes of a module that hold its hooks by their id."""

HOOK_FLAGS = (
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
"""Attributes of a module that hold options of its hooks by their id."""


def has_hooks(module: nn.Module, backward: bool = True) -> bool:
    """Return whether hooks of the module may change its input, output or gradients.

    Hooks of all modules are not counted: see `has_global_hooks`.

    Args:
        module: any module.
        backward: whether hooks of the backward pass count too.

    >>> has_hooks(nn.ReLU())
    False
    """
    return any(vars(module).get(hooks) for hooks in _names(backward))


def has_global_hooks(backward: bool = True) -> bool:
    """Return whether hooks are registered for all modules of the process.

    Args:
        backward: whether hooks of the backward pass count too.
    """
    return any(getattr(torch_module, f"_global{hooks}") for hooks in _names(backward))


def _names(backward: bool) -> tuple[str, ...]:
    return HOOKS if backward else _FORWARD_HOOKS


def has_own_call(module: nn.Module) -> bool:
    """Return whether a call runs other code than the ``forward`` of the module's class.

    True if ``forward`` was replaced or compiled, or if the class overrides ``__call__``.
    """
    own = vars(module)
    if "forward" in own or own.get("_compiled_call_impl") is not None:
        return True
    return type(module).__call__ is not _CALL


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
    if has_global_hooks() or has_hooks(module) or has_own_call(module):
        return False
    owner = next(base for base in type(module).__mro__ if "forward" in vars(base))
    return defining_module(vars(owner)["forward"]) == owner.__module__


def defining_module(function: object) -> str:
    """Return the name of the Python module that a function was written in.

    Unlike ``__module__``, it is not copied by ``functools.wraps``.

    >>> defining_module(nn.Linear.forward)
    'torch.nn.modules.linear'
    """
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


_CALL = nn.Module.__call__  # as torch defined it; torch.fx replaces it while it traces


def has_gradient_hooks(parameters: Iterable[Tensor]) -> bool:
    """Return whether a parameter has hooks of ``register_hook``, which training steps see.

    >>> has_gradient_hooks(nn.Linear(1, 1).parameters())
    False
    """
    return any(parameter._backward_hooks for parameter in parameters)


def copy_gradient_hooks(model: nn.Module, network: nn.Module) -> None:
    """Register the gradient hooks of a model's parameters on the same parameters of another.

    ``copy.deepcopy`` leaves them out.

    Args:
        model: with or without hooks on its parameters.
        network: its parameters of the same name and shape get the hooks.
    """
    own = dict(model.named_parameters())
    for name, parameter in network.named_parameters():
        given = own.get(name)
        if given is None or given.shape != parameter.shape or not parameter.requires_grad:
            continue
        for hook in (given._backward_hooks or {}).values():
            parameter.register_hook(hook)  # type: ignore[no-untyped-call]  # untyped in torch


def has_backward_hooks(model: nn.Module) -> bool:
    """Return whether a module of the model has hooks of its backward pass.

    >>> has_backward_hooks(nn.Linear(1, 1))
    False
    """
    return any(vars(each).get(hooks) for each in model.modules() for hooks in _BACKWARD_HOOKS)


def apply_gradient_hooks(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Return gradients as training steps see them: after the hooks on the parameters.

    Args:
        parameters: with or without hooks.
        gradients: of each, computed at other tensors; None where there is none.

    >>> weight = nn.Parameter(torch.ones(1))
    >>> handle = weight.register_hook(lambda gradient: 2 * gradient)
    >>> apply_gradient_hooks([weight], [torch.ones(1)])
    (tensor([2.]),)
    """
    pairs = zip(parameters, gradients, strict=True)
    return tuple(None if g is None else _apply_hooks(p, g) for p, g in pairs)


def _apply_hooks(parameter: Tensor, gradient: Tensor) -> Tensor:
    if not parameter._backward_hooks:
        return gradient
    with torch.no_grad():
        for hook in parameter._backward_hooks.values():
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
    return gradient
