"""A backward pass recorded as a function of its cotangent alone.

The Jacobian times a vector is the derivative of a backward pass in the cotangent it starts from.
The saved activations and weights do not depend on that cotangent. Without this module, functions
with a custom gradient would differentiate by them all the same and discard the result: PyTorch
tells a function which inputs have a graph, not which gradients are requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from normscope.interrupts import Undo

_RECORDING: ContextVar[bool] = ContextVar("record_cotangent_only", default=False)


@contextmanager
def record_cotangent_only() -> Iterator[None]:
    """Record a backward pass with saved tensors as constants.

    Yields:
        Nothing.
    """
    before = _RECORDING.get()
    restore = Undo(lambda: _set(before))
    _set(True)
    try:
        yield
    finally:
        restore()


def _set(value: bool) -> None:
    _RECORDING.set(value)


def detach_if_recording(saved: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a function's saved tensors, detached inside `record_cotangent_only`.

    Args:
        saved: tensors, or None.

    Returns:
        The same tensors, or detached ones.

    >>> import torch
    >>> (weight,) = leaves = (torch.ones(1, requires_grad=True),)
    >>> with record_cotangent_only():
    ...     detach_if_recording(leaves)[0].requires_grad
    False
    >>> detach_if_recording(leaves)[0] is weight
    True
    """
    if not _RECORDING.get():
        return saved
    return tuple(None if tensor is None else tensor.detach() for tensor in saved)
