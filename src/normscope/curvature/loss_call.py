"""Whether a loss can be called as it will be, found out from its signature alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from normscope.errors import ArgumentTypeError

__all__ = ["check_call"]


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
