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

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge, saved_tensors_hooks

from normscope.errors import StateError
from normscope.interrupts import Undo

_RECORDING: ContextVar[bool] = ContextVar("record_cotangent_only", default=False)


@contextmanager
def record_cotangent_only(cotangent: Tensor) -> Iterator[None]:
    """Record a backward pass with saved tensors as constants.

    The pass is linear in its cotangent, so its derivative there needs no tensor that depends on
    the cotangent. PyTorch saves them all the same, for derivatives in the weights; here only their
    shapes are kept, which halves the memory of the graph.

    Args:
        cotangent: a leaf that requires a gradient.

    Yields:
        Nothing.
    """
    known = {get_gradient_edge(cotangent).node: True}
    before = _RECORDING.get()
    restore = Undo(lambda: _set(before))
    _set(True)
    try:
        with saved_tensors_hooks(lambda saved: _pack(saved, known), _unpack):
            yield
    finally:
        known.clear()  # the graph holds the hooks, and would hold itself
        restore()


def _pack(saved: Tensor, known: dict[Node, bool]) -> tuple[Tensor, torch.Size | int]:
    """Return a tensor with its version, or one entry with the shape of a tensor not needed."""
    if saved.grad_fn is None or not _reaches(saved.grad_fn, known):
        return saved, saved._version
    # not a number: a product that uses it after all is refused, not wrong
    return saved.new_full((), torch.nan), saved.shape


def _unpack(packed: tuple[Tensor, torch.Size | int]) -> Tensor:
    tensor, shape = packed
    if not isinstance(shape, int):
        return tensor.expand(shape)
    if tensor._version != shape:  # which torch does not check behind hooks
        raise StateError("a backward pass overwrites a tensor in place that its derivative needs.")
    return tensor


def _reaches(node: Node, known: dict[Node, bool]) -> bool:
    """Return whether a node was computed from one that is known to be reached."""
    waiting = [node]
    while waiting:
        following = [each for each, _ in waiting[-1].next_functions if each is not None]
        missing = [each for each in following if each not in known]
        if missing:
            waiting += missing
            continue
        last = waiting.pop()
        known.setdefault(last, any(known[each] for each in following))
    return known[node]


def _set(value: bool) -> None:
    _RECORDING.set(value)


def detach_if_recording(saved: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a function's saved tensors, detached inside `record_cotangent_only`.

    Args:
        saved: tensors, or None.

    Returns:
        The same tensors, or detached ones.

    >>> (weight,) = leaves = (torch.ones(1, requires_grad=True),)
    >>> with record_cotangent_only(torch.ones(1, requires_grad=True)):
    ...     detach_if_recording(leaves)[0].requires_grad
    False
    >>> detach_if_recording(leaves)[0] is weight
    True
    """
    if not _RECORDING.get():
        return saved
    return tuple(None if tensor is None else tensor.detach() for tensor in saved)
