"""How a loss is called, and whether it can be, found out from its signature alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError

__all__ = ["called", "check_call"]


def check_call(function: Callable[..., Any], *arguments: str) -> None:
    """Refuse a loss that does not take its arguments, before a library line fails to call it.

    Args:
        function: the loss; one whose signature cannot be read is not judged.
        *arguments: what it will be called with, in words.

    Raises:
        ArgumentTypeError: if it takes fewer, or asks for more.

    >>> check_call(lambda output: output.mean(), "output", "target")
    Traceback (most recent call last):
    normscope.errors.ArgumentTypeError: the loss must take (output, target), but <lambda> takes ...
    """
    # a module's own call takes everything, and hooks may change what its forward gets
    hooked = isinstance(function, nn.Module) and function._forward_pre_hooks
    called = function.forward if isinstance(function, nn.Module) and not hooked else function
    try:
        # a decorated loss takes what its wrapper takes
        signature = inspect.signature(called, follow_wrapped=False)
    except (TypeError, ValueError):  # code in C has none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        takes = ", ".join(signature.parameters)
        raise ArgumentTypeError(
            f"the loss must take ({', '.join(arguments)}), but {name} takes ({takes})."
        ) from error


def called(loss: Callable[..., Any], output: Tensor, target: Any) -> Any:
    """The loss of an output.

    Args:
        loss: whatever it is; what a loss of the user's own raises is not touched.
        output: the model's.
        target: the targets.

    Returns:
        What the loss returns.

    Raises:
        InputError: if a loss of torch does not take them, with what they are.

    >>> called(nn.BCEWithLogitsLoss(), torch.zeros(2, 3), torch.zeros(2))
    Traceback (most recent call last):
        ...
    normscope.errors.InputError: BCEWithLogitsLoss does not take an output of shape (2, 3) ...
    """
    if not type(loss).__module__.startswith("torch.nn"):
        return loss(output, target)
    try:
        return loss(output, target)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        came = f"a target of type {type(target).__name__}"
        if isinstance(target, Tensor):
            came = f"a target of shape {tuple(target.shape)} and {target.dtype}"
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"{type(loss).__name__} does not take an output of shape {tuple(output.shape)} with "
            f"{came} ({reason}); give the targets that it asks for."
        ) from error
