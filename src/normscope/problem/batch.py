"""Batches: a tensor, or nested tuples, lists and dictionaries of tensors whose rows are samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError, ShapeError

Batch: TypeAlias = Any
"""A tensor, or nested tuples, lists and dictionaries of tensors."""


def tensors_of(batch: Batch) -> Iterator[Tensor]:
    """Yield every tensor of a batch, in order.

    >>> print(*(len(tensor) for tensor in tensors_of({"x": torch.ones(2, 3), "y": torch.ones(5)})))
    2 5
    """
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | tuple | list):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_of(part)


def map_tensors(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """Apply a function to every tensor of a batch; other content, such as a string, stays.

    >>> map_tensors({"x": torch.ones(2), "name": "a"}, torch.neg)
    {'x': tensor([-1., -1.]), 'name': 'a'}
    """
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(part, function) for key, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = tuple(map_tensors(part, function) for part in batch)
        return type(batch)._make(parts) if hasattr(batch, "_make") else parts  # a named tuple
    return batch


def sample_count(batch: Batch) -> int:
    """Return the number of samples: the length of the batch's tensors, which must agree.

    Args:
        batch: the batch.

    Returns:
        The number of rows.

    Raises:
        ArgumentTypeError: if it holds no tensor.
        ShapeError: if a tensor is a scalar, or the lengths differ.

    >>> sample_count((torch.ones(4, 3), torch.ones(4)))
    4
    """
    shapes = [tuple(tensor.shape) for tensor in tensors_of(batch)]
    if not shapes:
        raise _no_tensor(batch)
    lengths = {shape[0] if shape else None for shape in shapes}
    if None in lengths or len(lengths) > 1:
        raise ShapeError(
            "the tensors of a batch need one row per sample, as many in each, got the shapes "
            f"{', '.join(map(str, shapes))}."
        )
    return shapes[0][0]


def move_batch(batch: Batch, device: torch.device, dtype: torch.dtype | None) -> Batch:
    """Return the batch on a device, its floating-point tensors in a dtype (None: unchanged).

    Tensors made in `torch.inference_mode` are copied: autograd cannot save them.
    """

    def move(tensor: Tensor) -> Tensor:
        wanted = dtype if tensor.is_floating_point() else None
        if tensor.is_inference():
            with torch.inference_mode(False):
                tensor = tensor.clone()
        return tensor.to(device, wanted, non_blocking=True)

    return map_tensors(batch, move)


def follow_model(batch: Batch, model: nn.Module) -> Batch:
    """Return the batch on the model's device and in its dtype; unchanged if it has no tensor."""
    tensors = chain(model.parameters(), model.buffers())
    reference = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
    return batch if reference is None else move_batch(batch, reference.device, reference.dtype)


def to_double(batch: Batch) -> Batch:
    """Return the batch with its floating-point tensors in float64.

    >>> to_double((torch.ones(1), torch.ones(1, dtype=torch.long)))
    (tensor([1.], dtype=torch.float64), tensor([1]))
    """
    return map_tensors(batch, lambda each: each.double() if each.is_floating_point() else each)


def copy_batch(batch: Batch) -> Batch:
    """Return a copy of the batch, which a model may overwrite."""
    return map_tensors(batch, Tensor.clone)


def rows(batch: Batch, index: Tensor) -> Batch:
    """Return the samples of a batch with these indices, as a new batch.

    >>> rows((torch.tensor([[1.0], [2.0]]), torch.tensor([3, 4])), torch.tensor([1]))
    (tensor([[2.]]), tensor([4]))
    """
    return map_tensors(batch, lambda tensor: tensor.index_select(0, index))


def random_rows(batch: Batch, count: int, generator: torch.Generator) -> Batch:
    """Return samples of a batch in random order, without replacement.

    Args:
        batch: the batch.
        count: how many; all if there are fewer.
        generator: on the CPU.

    Returns:
        The new batch.

    >>> generator = torch.Generator().manual_seed(0)
    >>> random_rows(torch.arange(4), 4, generator).sort().values
    tensor([0, 1, 2, 3])
    """
    order = torch.randperm(sample_count(batch), generator=generator)[:count]
    return rows(batch, order.to(next(tensors_of(batch)).device))


def split_batch(batch: Batch, size: int) -> list[Batch]:
    """Split a batch, in order, into as few parts of at most ``size`` samples as possible.

    The parts are views and differ by at most one sample. A single sample has no batch statistics:
    none is left alone unless ``size`` is 1 or there is no other, so that an odd number of samples
    in parts of 2 ends with a part of 3.

    >>> print(*(len(part) for part in split_batch(torch.zeros(9, 2), size=4)))
    3 3 3
    >>> print(*(len(part) for part in split_batch(torch.zeros(5, 2), size=2)))
    2 3
    """
    samples = sample_count(batch)
    count = -(-samples // size)
    if size > 1:
        count = min(count, max(1, samples // 2))
    ends = [samples * part // count for part in range(count + 1)]
    return [map_tensors(batch, itemgetter(slice(start, end))) for start, end in pairwise(ends)]


def join_batches(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches of one structure.

    >>> join_batches([(torch.ones(1), torch.zeros(1)), (torch.ones(2), torch.zeros(2))])
    (tensor([1., 1., 1.]), tensor([0., 0., 0.]))
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(tuple(batches))
    if isinstance(first, Mapping):
        return {key: join_batches([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(join_batches(parts) for parts in zip(*batches, strict=True))
    return first  # such as a string, the same for all


def inputs_of(data: object) -> Iterator[Tensor]:
    """Yield the input of every batch; targets are not needed.

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
        _reject_batch_as_list(data)
    for batch in data:
        yield _input_of(batch)


def _input_of(batch: object) -> Tensor:
    x = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(x, Tensor):
        got = type(batch).__name__
        if isinstance(batch, tuple | list) and batch:
            got = f"a {got} that starts with {type(x).__name__}"
        raise ArgumentTypeError(
            f"a batch must be a tensor x or a tuple (x, y) whose x is a tensor, got {got}."
        )
    return x


def _reject_batch_as_list(data: list[Any]) -> None:
    """A DataLoader gives lists [x, y]: in such a list y would count as a second batch."""
    tensors = [item for item in data if isinstance(item, Tensor)]
    if len(tensors) == len(data) and len({tensor.dim() for tensor in tensors}) > 1:
        raise InputError(
            "a list is a list of batches, but its tensors have different numbers of dimensions; "
            "pass one batch as a tuple (x, y)."
        )


def check_pair(batch: Batch) -> None:
    """Reject what is not a pair (inputs, targets) of equally many samples, at least one.

    Args:
        batch: the batch.

    Raises:
        ArgumentTypeError: if it is not a pair of tensors.
        InputError: if it is empty or has no storage.
        ShapeError: if inputs and targets differ in length.
    """
    expected = "a batch is a pair (inputs, targets) of tensors, got"
    is_pair = isinstance(batch, tuple | list) and len(batch) == 2
    if is_pair and any(type(part).__name__ == "ndarray" for part in batch):
        raise ArgumentTypeError(
            f"{expected} {_described(batch)}; convert NumPy arrays with torch.from_numpy."
        )
    if isinstance(batch, Tensor):
        raise ArgumentTypeError(
            f"{expected} a Tensor; a list is a list of batches: if one batch is a list "
            "[inputs, targets], pass tuple(batch)."
        )
    if not is_pair or not all(isinstance(part, Tensor) for part in batch):
        raise ArgumentTypeError(
            f"{expected} {_described(batch)}; put several batches in a list, and for other call "
            "signatures use whole_loss(lambda model, batch: ...)."
        )
    inputs, targets = batch
    if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) != len(targets):
        raise ShapeError(
            "inputs and targets need one row per sample, as many in each, got shapes "
            f"{tuple(inputs.shape)} and {tuple(targets.shape)}."
        )
    check_filled(batch)


def check_filled(batch: Batch) -> None:
    """Reject a batch without a tensor, without a sample, or without storage.

    Args:
        batch: the batch.

    Raises:
        ArgumentTypeError: if it holds no tensor.
        InputError: if it has no sample, or a tensor on the meta device.
    """
    tensors = list(tensors_of(batch))
    if not tensors:
        raise _no_tensor(batch)
    if any(tensor.is_meta for tensor in tensors):
        raise InputError("the data is on the meta device and has no values; give real tensors.")
    if any(tensor.dim() > 0 and len(tensor) == 0 for tensor in tensors):
        raise InputError("the batch is empty; give at least one sample.")


def _no_tensor(batch: Batch) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"a batch holds tensors, got {_described(batch)}; convert arrays with torch.as_tensor."
    )


def _described(batch: Batch) -> str:
    if isinstance(batch, tuple | list) and batch:
        return f"a {type(batch).__name__} of {', '.join(type(part).__name__ for part in batch)}"
    return f"a {type(batch).__name__}"
