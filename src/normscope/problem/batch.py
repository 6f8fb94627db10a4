"""Batches: a tensor, nested tuples, lists, dictionaries and dataclasses of tensors, or a graph.

The rows of the tensors are samples if all have equally many. Graphs of torch_geometric, and tensors
of different lengths, have no such rows: they are moved and copied, but never cut or reordered.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError, ShapeError

Batch: TypeAlias = Any
"""A tensor, nested tuples, lists, dictionaries and dataclasses of tensors, or a graph of
torch_geometric."""


def tensors_of(batch: Batch) -> Iterator[Tensor]:
    """Yield every tensor of a batch, in order.

    >>> print(*(len(tensor) for tensor in tensors_of({"x": torch.ones(2, 3), "y": torch.ones(5)})))
    2 5
    """
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, tuple | list):  # first: a check for Mapping is slow
        for part in batch:
            yield from tensors_of(part)
    elif isinstance(batch, Mapping) or is_record(batch):
        for part in (batch if isinstance(batch, Mapping) else record_fields(batch)).values():
            yield from tensors_of(part)
    elif is_graph(batch):
        found: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            found.append(tensor)
            return tensor

        map_tensors(batch, note)
        yield from found


def is_graph(batch: object) -> bool:
    """Return whether a batch is a ``Data``, ``HeteroData`` or ``Batch`` of torch_geometric.

    It is recognized by the module of its class, so that torch_geometric is not imported.

    >>> is_graph(torch.ones(2))
    False
    """
    return any(kind.__module__.startswith("torch_geometric.data") for kind in type(batch).__mro__)


def is_record(batch: object) -> bool:
    """Return whether a batch is a dataclass object, and not one that iterates over batches."""
    return is_dataclass(batch) and not isinstance(batch, type | Iterable)


def record_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass object by name."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _with_fields(record: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a dataclass object with other fields; also of a frozen one."""
    made = copy.copy(record)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def map_tensors(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """Apply a function to every tensor of a batch; other content, such as a string, stays.

    >>> map_tensors({"x": torch.ones(2), "name": "a"}, torch.neg)
    {'x': tensor([-1., -1.]), 'name': 'a'}
    """
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, tuple | list):
        parts = tuple(map_tensors(part, function) for part in batch)
        return type(batch)._make(parts) if hasattr(batch, "_make") else parts  # a named tuple
    if isinstance(batch, Mapping):
        return {key: map_tensors(part, function) for key, part in batch.items()}
    if is_graph(batch):  # apply changes the object, and passes other content to the function too
        return copy.copy(batch).apply(lambda x: function(x) if isinstance(x, Tensor) else x)
    if is_record(batch):
        return _with_fields(batch, map_tensors(record_fields(batch), function))
    return batch


def has_samples(batch: Batch) -> bool:
    """Return whether the rows of a batch are samples: all its tensors have equally many.

    >>> has_samples((torch.ones(4, 3), torch.ones(4))), has_samples((torch.ones(4), torch.ones(2)))
    (True, False)
    """
    shapes = [tensor.shape for tensor in tensors_of(batch)]
    lengths = {shape[0] if shape else None for shape in shapes}
    return not is_graph(batch) and len(lengths) == 1 and None not in lengths


def batch_count(batch: Batch) -> int:
    """Return for how much a batch counts beside others: its samples, or graphs; else 1.

    Args:
        batch: of any form; ``num_graphs`` is read from a ``Batch`` of torch_geometric.

    Returns:
        The number of samples, or of graphs; 1 if the batch has neither.

    >>> batch_count((torch.ones(4, 3), torch.ones(4))), batch_count((torch.ones(4), torch.ones(2)))
    (4, 1)
    """
    if has_samples(batch):
        return sample_count(batch)
    return int(getattr(batch, "num_graphs", 1)) if is_graph(batch) else 1


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
        raise no_tensor_error(batch)
    if not has_samples(batch):
        of = f" of a {type(batch).__name__}" if is_graph(batch) else ""
        raise ShapeError(
            "the tensors of a batch need one row per sample, as many in each, to be counted or cut "
            f"into samples, got the shapes {', '.join(map(str, shapes))}{of}; leave the batch "
            "size out, and give batches of other forms whole, in a list."
        )
    return int(shapes[0][0])


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
    sample_count(batch)  # raises for rows that are not samples
    return map_tensors(batch, lambda tensor: tensor.index_select(0, index))


def first_rows(batch: Batch, count: int) -> Batch:
    """Return at most so many samples from the start of a batch; all of one without samples.

    >>> first_rows((torch.tensor([3.0, 4.0]), torch.tensor([5, 6])), 1)
    (tensor([3.]), tensor([5]))
    """
    if not has_samples(batch):
        return batch
    few = min(count, sample_count(batch))
    return rows(batch, torch.arange(few, device=next(tensors_of(batch)).device))


def positions_per_sample(target: object) -> int:
    """Return the number of outputs of one sample that a loss averages, such as its tokens.

    >>> positions_per_sample(torch.zeros(8, 5, dtype=torch.long))
    5
    >>> positions_per_sample(torch.zeros(8, 10))
    1
    """
    if not isinstance(target, Tensor) or 0 in target.shape:
        return 1
    return math.prod(target.shape[2 if target.is_floating_point() else 1 :])


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
    if is_graph(first):
        sample_count(first)  # raises
    if isinstance(first, Tensor):
        return torch.cat(tuple(batches))
    if isinstance(first, Mapping):
        return {key: join_batches([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(join_batches(parts) for parts in zip(*batches, strict=True))
    if is_record(first):
        return _with_fields(first, join_batches([record_fields(batch) for batch in batches]))
    return first  # such as a string, the same for all


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
        raise no_tensor_error(batch)
    if any(tensor.is_meta for tensor in tensors):
        raise InputError("the data is on the meta device and has no values; give real tensors.")
    empty = [tensor.dim() > 0 and len(tensor) == 0 for tensor in tensors]
    if all(empty) if is_graph(batch) else any(empty):  # a graph may have no edge attribute
        raise InputError("the batch is empty; give at least one sample.")


def no_tensor_error(batch: Batch) -> ArgumentTypeError:
    """Return the error for a batch without a tensor."""
    return ArgumentTypeError(
        f"a batch holds tensors, got {describe_batch(batch)}; convert arrays with torch.as_tensor."
    )


def describe_batch(batch: Batch) -> str:
    """Return the type of a batch, and of its parts.

    >>> describe_batch((torch.ones(1), "a"))
    'a tuple of Tensor, str'
    """
    if isinstance(batch, tuple | list) and batch:
        return f"a {type(batch).__name__} of {', '.join(type(part).__name__ for part in batch)}"
    return f"a {type(batch).__name__}"
