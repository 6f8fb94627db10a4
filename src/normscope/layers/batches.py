"""The inputs in what a user calls data: one batch, a list of batches, or a DataLoader."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError


def inputs_of(data: object) -> Iterator[Tensor]:
    """The input of every batch, in order.

    Args:
        data: a tensor or a tuple ``(x, ...)``: one batch; a list, a DataLoader or another
            iterable of tensors or of tuples or lists ``(x, ...)``: several.

    Yields:
        The tensor x of each batch.

    Raises:
        ArgumentTypeError: if the data or a batch is something else.
        InputError: if a list of tensors looks like one batch ``[x, y]``.

    >>> [x.shape[0] for x in inputs_of([torch.zeros(3, 2), (torch.zeros(5, 2), None)])]
    [3, 5]
    """
    if isinstance(data, Tensor | tuple):
        yield _input_of(data)
        return
    if isinstance(data, Mapping | str) or not isinstance(data, Iterable):
        raise ArgumentTypeError(
            "data must be a tensor, a tuple (x, y), a list of batches or a DataLoader, "
            f"got {type(data).__name__}."
        )
    if isinstance(data, list):
        _refuse_batch_as_list(data)
    for batch in data:
        yield _input_of(batch)


def follow_model(x: Tensor, model: nn.Module) -> Tensor:
    """The input on the model's device and, if it is floating point, in the model's dtype.

    Args:
        x: an input.
        model: the model that is to take it.

    Returns:
        The input itself where nothing has to change.
    """
    tensors = itertools.chain(model.parameters(), model.buffers())
    reference = next((t for t in tensors if t.is_floating_point()), None)
    if reference is None:
        return x
    return x.to(reference.device, reference.dtype if x.is_floating_point() else None)


@contextlib.contextmanager
def same_randomness(model: nn.Module, data: object) -> Iterator[None]:
    """Leave torch's, Python's and the data's random generators as they were.

    So every pass over a shuffled DataLoader inside such a block gives the same batches.

    Args:
        model: its CUDA devices' generators are kept, beside the CPU's.
        data: the generators of a DataLoader and of its samplers are kept. NumPy's and those that
            a dataset holds itself are not.
    """
    devices = {tensor.device for tensor in model.parameters() if tensor.is_cuda}
    states = [(generator, generator.get_state()) for generator in _generators_of(data)]
    python_state = random.getstate()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(python_state)
        for generator, state in states:
            generator.set_state(state)


def _generators_of(data: object) -> list[torch.Generator]:
    """Of a DataLoader, its sampler, its batch sampler and the sampler in that."""
    batch_sampler = getattr(data, "batch_sampler", None)
    samplers = [getattr(owner, "sampler", None) for owner in (data, batch_sampler)]
    found = [getattr(owner, "generator", None) for owner in (data, batch_sampler, *samplers)]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def _input_of(batch: object) -> Tensor:
    x = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(
            f"a batch must be a tensor x or a tuple (x, y) whose x is a tensor, "
            f"got {_description(batch)}."
        )
    return x


def _description(batch: object) -> str:
    if isinstance(batch, tuple | list) and batch:
        return f"a {type(batch).__name__} that starts with {type(batch[0]).__name__}"
    return type(batch).__name__


def _refuse_batch_as_list(data: list[Any]) -> None:
    """A DataLoader gives lists [x, y]: passed on alone, y would be taken for a second batch."""
    tensors = [item for item in data if isinstance(item, Tensor)]
    if len(tensors) == len(data) and len({tensor.dim() for tensor in tensors}) > 1:
        raise InputError(
            "a list is taken for a list of batches, but its tensors have different numbers of "
            "dimensions; pass one batch as a tuple (x, y)."
        )
