"""The modules that a loss uses, and a loss that leaves their state unchanged."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn
from torch.nn.modules import loss as torch_losses

from normscope.problem.isolation import isolated
from normscope.problem.loss import Loss, WholeLoss, whole_loss


def loss_modules(loss: Loss | WholeLoss | str | None, model: nn.Module) -> list[nn.Module]:
    """Return the modules that a loss is, or that its function uses, each once.

    Args:
        loss: as `Problem` takes it.
        model: the model; neither it nor a module that contains it is returned.

    Returns:
        The modules, such as a loss with a running mean.

    >>> loss_modules(nn.MSELoss(), nn.Linear(1, 1))
    [MSELoss()]
    """
    functions = loss.parts if isinstance(loss, WholeLoss) else (loss,)
    found = {id(module): module for each in functions for module in _modules_used(each)}
    return [each for each in found.values() if all(model is not m for m in each.modules())]


def _modules_used(function: Any) -> Iterator[nn.Module]:
    owner = getattr(function, "__self__", None)
    if isinstance(function, nn.Module):
        yield function
    elif isinstance(function, functools.partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from _modules_used(part)
    elif isinstance(owner, nn.Module):
        yield owner
    elif inspect.isfunction(function):
        closure = inspect.getclosurevars(function)
        values = [*closure.nonlocals.values(), *closure.globals.values()]
        yield from (value for value in values if isinstance(value, nn.Module))


def stateless_loss(
    loss: Loss | WholeLoss | str | None, modules: Sequence[nn.Module]
) -> Loss | WholeLoss | str | None:
    """Return a loss that is the same function at each call: its modules are restored every time.

    Args:
        loss: as `Problem` takes it.
        modules: its `loss_modules`.

    Returns:
        The loss itself if its modules have no state to change.
    """
    if isinstance(loss, str | None) or not any(map(_has_state, modules)):
        return loss
    if not isinstance(loss, WholeLoss):
        return _restore_after(loss, modules)
    parts = [_restore_after(each, modules) for each in loss.parts]
    return whole_loss(*parts) if len(parts) == 1 else whole_loss(outputs=parts[0], loss=parts[1])


def _restore_after(function: Callable[..., Any], modules: Sequence[nn.Module]) -> Loss:
    """Return a function that restores the modules after each call."""

    def call(*arguments: Any) -> Any:
        with isolated(nn.Module(), *modules):
            return function(*arguments)

    return call


def _has_state(module: nn.Module) -> bool:
    return any(map(_may_change, module.modules()))


def _may_change(module: nn.Module) -> bool:
    """Return whether a call may change what the module's own attributes are."""
    defined_in = type(module).__module__
    if defined_in == torch_losses.__name__:
        return False  # buffers with the weights of classes
    is_torchs = defined_in.startswith("torch.nn.")
    attributes = vars(module).keys() - vars(nn.Module()).keys()
    return next(module.buffers(False), None) is not None or bool(attributes and not is_torchs)
