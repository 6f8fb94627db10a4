"""A batch: a tensor, or a tuple, list or dictionary of tensors whose rows are samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from normscope.errors import ArgumentTypeError, InputError, ShapeError

__all__ = [
    "Batch",
    "check_filled",
    "check_pair",
    "moved",
    "pieces",
    "rows",
    "sample_count",
    "tensors_of",
]

Batch: TypeAlias = Any


def tensors_of(batch: Batch) -> Iterator[Tensor]:
    """Every tensor of a batch, in order.

    >>> [tuple(tensor.shape) for tensor in tensors_of({"x": torch.ones(2, 3), "y": torch.ones(2)})]
    [(2, 3), (2,)]
    """
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from tensors_of(part)
    elif isinstance(batch, tuple | list):
        for part in batch:
            yield from tensors_of(part)


def sample_count(batch: Batch) -> int:
    """Number of samples: the length of the batch's tensors, all of which must agree.

    Args:
        batch: the batch.

    Returns:
        The number of rows.

    Raises:
        ArgumentTypeError: if it holds no tensor.
        ShapeError: if a tensor has no rows to count, or the lengths differ.

    >>> sample_count((torch.ones(4, 3), torch.ones(4)))
    4
    """
    shapes = [tuple(tensor.shape) for tensor in tensors_of(batch)]
    if not shapes:
        raise ArgumentTypeError(
            f"a batch holds tensors, got {type(batch).__name__} without any; convert arrays by "
            "torch.as_tensor."
        )
    lengths = {shape[0] if shape else None for shape in shapes}
    if None in lengths or len(lengths) > 1:
        raise ShapeError(
            "the tensors of a batch need one row per sample, as many in each, got the shapes "
            f"{', '.join(map(str, shapes))}."
        )
    return shapes[0][0]


def moved(batch: Batch, device: torch.device, dtype: torch.dtype | None) -> Batch:
    """The same batch on a device, its floating-point tensors in a dtype (None: as they are).

    Tensors made in `torch.inference_mode` are copied: no graph may hold them.
    """

    def move(tensor: Tensor) -> Tensor:
        wanted = dtype if tensor.is_floating_point() else None
        if tensor.is_inference():
            with torch.inference_mode(False):
                tensor = tensor.clone()
        return tensor.to(device, wanted, non_blocking=True)

    return _mapped(batch, move)


def copied(batch: Batch) -> Batch:
    """The batch in memory of its own."""
    return _mapped(batch, Tensor.clone)


def rows(batch: Batch, index: Tensor) -> Batch:
    """The samples of a batch with these indices, as a new batch.

    >>> rows((torch.tensor([[1.0], [2.0]]), torch.tensor([3, 4])), torch.tensor([1]))
    (tensor([[2.]]), tensor([4]))
    """
    return _mapped(batch, lambda tensor: tensor.index_select(0, index))


def pieces(batch: Batch, size: int) -> list[Batch]:
    """The batch in order, cut into as few pieces of at most ``size`` samples as possible.

    The pieces are views and differ by at most one sample. A single sample has no batch statistics:
    none is left alone unless ``size`` is 1 or there is no other, so that an odd number of samples
    in pieces of 2 ends with a piece of 3.

    >>> [len(piece) for piece in pieces(torch.zeros(9, 2), size=4)]
    [3, 3, 3]
    >>> [len(piece) for piece in pieces(torch.zeros(5, 2), size=2)]
    [2, 3]
    """
    samples = sample_count(batch)
    count = -(-samples // size)
    if size > 1:
        count = min(count, max(1, samples // 2))
    ends = [samples * place // count for place in range(count + 1)]
    return [_mapped(batch, itemgetter(slice(start, end))) for start, end in pairwise(ends)]


def check_pair(batch: Batch) -> None:
    """Refuse what is not a pair (inputs, targets) of equally many samples, at least one.

    Args:
        batch: the batch.

    Raises:
        ArgumentTypeError: if it is not a pair of tensors.
        InputError: if it is empty or has no storage.
        ShapeError: if inputs and targets differ in length.
    """
    is_pair = isinstance(batch, tuple | list) and len(batch) == 2
    if is_pair and any(type(part).__name__ == "ndarray" for part in batch):
        raise ArgumentTypeError(
            f"a batch is a pair (inputs, targets) of tensors, got {_described(batch)}; make "
            "tensors of NumPy arrays with torch.from_numpy."
        )
    if isinstance(batch, Tensor):
        raise ArgumentTypeError(
            "a batch is a pair (inputs, targets) of tensors, got a Tensor; a list is a list of "
            "batches: make one batch that is a list [inputs, targets] a tuple, tuple(batch)."
        )
    if not is_pair or not all(isinstance(part, Tensor) for part in batch):
        raise ArgumentTypeError(
            f"a batch is a pair (inputs, targets) of tensors, got {_described(batch)}; put several "
            "batches in a list, and for other call shapes use whole_loss(lambda model, batch: ...)."
        )
    inputs, targets = batch
    if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) != len(targets):
        raise ShapeError(
            "inputs and targets need one row per sample, as many in each, got shapes "
            f"{tuple(inputs.shape)} and {tuple(targets.shape)}."
        )
    check_filled(batch)


def check_filled(batch: Batch) -> None:
    """Refuse a batch without a tensor, without a sample, or without storage.

    Args:
        batch: the batch.

    Raises:
        ArgumentTypeError: if it holds no tensor.
        InputError: if it has no sample, or a tensor on the meta device.
    """
    tensors = list(tensors_of(batch))
    if not tensors:
        raise ArgumentTypeError(
            f"a batch holds tensors, got {_described(batch)}; convert arrays by torch.as_tensor."
        )
    if any(tensor.is_meta for tensor in tensors):
        raise InputError("the data is on the meta device and has no values; give real tensors.")
    if any(tensor.dim() > 0 and len(tensor) == 0 for tensor in tensors):
        raise InputError("the batch is empty; give at least one sample.")


def _mapped(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with every tensor changed; other content, such as a text, stays."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: _mapped(part, change) for key, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = tuple(_mapped(part, change) for part in batch)
        return type(batch)._make(parts) if hasattr(batch, "_make") else parts  # a named tuple
    return batch


def _described(batch: Batch) -> str:
    if isinstance(batch, tuple | list) and batch:
        return f"a {type(batch).__name__} of {', '.join(type(part).__name__ for part in batch)}"
    return f"a {type(batch).__name__}"
