"""A backward pass recorded as a function of its cotangent alone.

The Jacobian times a vector is the derivative of a backward pass in the cotangent it starts from.
What the pass has saved, activations and weights, does not depend on that cotangent. Functions with
a gradient of their own would differentiate by it all the same, and throw the result away: PyTorch
tells them which inputs have a graph, not which of these anybody asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["held", "of_cotangent_alone"]

_ALONE: ContextVar[bool] = ContextVar("of_cotangent_alone", default=False)


@contextmanager
def of_cotangent_alone() -> Iterator[None]:
    """To be open while such a backward pass is recorded.

    Yields:
        Nothing.
    """
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def held(saved: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tensors a function saved, as its backward pass is to see them: constants, if recorded so.

    Args:
        saved: tensors, or None.

    Returns:
        The same, or without their graphs.

    >>> import torch
    >>> (weight,) = leaves = (torch.ones(1, requires_grad=True),)
    >>> with of_cotangent_alone():
    ...     held(leaves)[0].requires_grad
    False
    >>> held(leaves)[0] is weight
    True
    """
    if not _ALONE.get():
        return saved
    return tuple(None if tensor is None else tensor.detach() for tensor in saved)
