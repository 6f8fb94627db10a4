"""The state of a loss: modules that run with the model and are not part of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from normscope.curvature.problem import WholeLoss
from normscope.curvature.state import undisturbed
from normscope.losses import Loss

__all__ = ["modules_of_loss", "steady_loss"]


def modules_of_loss(loss: Loss | WholeLoss | str, model: nn.Module) -> list[nn.Module]:
    """The modules that a loss is, or that its function names: such as a loss with a running mean.

    Args:
        loss: as `Problem` takes it.
        model: the model, which is not one of them, nor is what holds it.

    Returns:
        Each once.

    >>> modules_of_loss(nn.MSELoss(), nn.Linear(1, 1))
    [MSELoss()]
    """
    named = _named_by(loss.function if isinstance(loss, WholeLoss) else loss)
    found = {id(module): module for module in named}
    return [each for each in found.values() if all(model is not m for m in each.modules())]


def _named_by(function: Any) -> Iterator[nn.Module]:
    owner = getattr(function, "__self__", None)
    if isinstance(function, nn.Module):
        yield function
    elif isinstance(function, functools.partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            yield from _named_by(part)
    elif isinstance(owner, nn.Module):
        yield owner
    elif inspect.isfunction(function):
        around = inspect.getclosurevars(function)
        values = [*around.nonlocals.values(), *around.globals.values()]
        yield from (value for value in values if isinstance(value, nn.Module))


def steady_loss(
    loss: Loss | WholeLoss | str, modules: Sequence[nn.Module]
) -> Loss | WholeLoss | str:
    """A loss that is the same function each time: its modules are put back after every call.

    Args:
        loss: as `Problem` takes it.
        modules: what it runs with.

    Returns:
        The loss itself if its modules have no state to change.
    """
    if isinstance(loss, str) or not any(map(_has_state, modules)):
        return loss

    def steady(*arguments: Any) -> Tensor:
        with undisturbed(nn.Module(), *modules):
            function = loss.function if isinstance(loss, WholeLoss) else loss
            return function(*arguments)

    return WholeLoss(steady) if isinstance(loss, WholeLoss) else steady


def _has_state(module: nn.Module) -> bool:
    own = vars(nn.Module()).keys()
    fixed = bool | int | float | str | None
    return any(
        next(part.buffers(False), None) is not None
        or any(name not in own and not isinstance(v, fixed) for name, v in vars(part).items())
        for part in module.modules()
    )
