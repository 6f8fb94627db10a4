"""Batches of what a command works on: of the size asked for, or the usual one as far as it goes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from normscope.errors import ArgumentTypeError, InputError, NormscopeError

__all__ = [
    "DEFAULT_BATCH_SIZE",
    "chosen_batches",
    "note_conversion",
    "parts_of_advice",
    "step_batch_size",
    "usual_batch_size",
]

DEFAULT_BATCH_SIZE = 256


def usual_batch_size(samples: int, batches: int = 1) -> int:
    """The batch size where none is asked for; a note on stderr says so if the data has fewer.

    Args:
        samples: of the data.
        batches: that are needed.

    Returns:
        256, or what the samples give.
    """
    size = min(DEFAULT_BATCH_SIZE, samples // batches)
    if 0 < size < DEFAULT_BATCH_SIZE and sys.stderr is not None:
        usual = f"{_counted(batches)} of the usual {DEFAULT_BATCH_SIZE}"
        print(
            f"normscope: note: the data has {_samples(samples)}, too few for {usual}; the batch "
            f"size is {size} instead.",
            file=sys.stderr,
        )
    return size


def chosen_batches(data: Any, batch_size: int | None, batches: int, seed: int = 0) -> list[Any]:
    """Some batches of the data, the same for the same seed.

    Args:
        data: a pair (inputs, targets) or a dictionary, of which samples are drawn without
            replacement; or an iterable of batches, of which the first are taken as they are.
        batch_size: samples in a batch; None for 256, or all if there are fewer.
        batches: how many batches.
        seed: of the draw.

    Returns:
        A list of batches.

    Raises:
        InputError: if there are too few samples or batches, or ``batch_size`` does not apply.
        ArgumentTypeError: if the data is neither.
    """
    import torch

    from normscope.problem.batch import check_filled, check_pair, rows, sample_count, split_batch

    is_pair = isinstance(data, tuple) and len(data) == 2
    if not (is_pair or isinstance(data, Mapping)):
        return _first_batches(data, batch_size, batches, seed)
    (check_pair if is_pair else check_filled)(data)
    samples = sample_count(data)
    size = usual_batch_size(samples, batches) if batch_size is None else batch_size
    if size < 1 or size * batches > samples:
        raise InputError(
            f"the data has {_samples(samples)}, too few for {_counted(batches)} of "
            f"{max(size, 1)}; ask for fewer or smaller ones."
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(samples, generator=generator)[: size * batches]
    return split_batch(rows(data, order), size)


def note_conversion(data: Any, model: Any) -> None:
    """Say on stderr that data of another precision than the model's is converted to it.

    Args:
        data: a pair (inputs, targets), a list of batches or a DataLoader of tensors in memory;
            nothing else is looked into, since to draw a batch may change what is drawn later.
        model: whose first real parameter or buffer has its precision.
    """
    from itertools import chain

    tensors = chain(model.parameters(), model.buffers())
    own = next((each.dtype for each in tensors if each.is_floating_point()), None)
    found = {
        what: values.dtype
        for what, values in zip(("inputs", "targets"), _first_pair(data), strict=False)
        if getattr(getattr(values, "dtype", None), "is_floating_point", False)
    }
    other = {what: given for what, given in found.items() if own is not None and given != own}
    if other and sys.stderr is not None:
        given = next(iter(other.values()))  # of both, mostly one
        given_name, own_name = (str(each).removeprefix("torch.") for each in (given, own))
        print(
            f"normscope: note: the {' and '.join(other)} are {given_name}, the model {own_name}: "
            "they are converted.",
            file=sys.stderr,
        )


def _first_pair(data: Any) -> Sequence[Any]:
    """The inputs and targets that lie in memory, of all samples or of the first batch."""
    if isinstance(data, list) and data:
        data = data[0]
    held = getattr(getattr(data, "dataset", None), "tensors", data)  # of a TensorDataset
    return held if isinstance(held, (tuple, list)) else ()


def step_batch_size(samples: Any, batch_size: int | None) -> int | None:
    """The batch size to train a source of data with.

    Args:
        samples: as `load_data` returns it.
        batch_size: what the user asked for.

    Returns:
        That; or 256 for one batch of more samples; None for batches of their own.

    Raises:
        InputError: if the data has batches of its own and a size is asked for, or too few samples.
        ArgumentTypeError: if a size is asked for of what is no data.
    """
    if not isinstance(samples, (tuple, Mapping)) or not samples:
        if batch_size is not None and not _can_be_read_again(samples):
            raise ArgumentTypeError(
                "the data must be a batch (inputs, targets), a list of batches or a DataLoader, "
                f"which can be read again, got {type(samples).__name__}."
            )
        _refuse_size(samples, batch_size)
        return None
    count = _count(samples)
    if count is None:
        return batch_size
    if count == 0:
        raise InputError("the data is empty; give at least one sample.")
    if batch_size is None:
        return usual_batch_size(count)
    if batch_size > count:
        raise InputError(
            f"the data has {_samples(count)}, too few for a batch of {batch_size}; leave the "
            f"batch size out for batches of {min(DEFAULT_BATCH_SIZE, count)}, or ask for a "
            "smaller one."
        )
    return batch_size


def _can_be_read_again(data: Any) -> bool:
    return isinstance(data, Iterable) and not isinstance(data, (str, Iterator))


def _count(batch: Any) -> int | None:
    """The samples of one batch; None if it is none, which the library says in full."""
    from normscope.problem.batch import sample_count

    try:
        return sample_count(batch)
    except NormscopeError:
        return None


def parts_of_advice(samples: Any, batch_size: int | None, verify: bool) -> int:
    """How many parts `max_learning_rate` has, for the progress bar.

    Args:
        samples: as `load_data` returns it.
        batch_size: of a step; None for batches of their own.
        verify: whether short runs are among them, whose number is a guess.

    Returns:
        Batches whose curvature is taken, three looks after a few steps, the prediction, the runs.
    """
    held = len(samples) if hasattr(samples, "__len__") else 3
    batches = held if batch_size is None else (_count(samples) or 1) // batch_size
    return max(min(batches, 3), 1) + 4 + (13 if verify else 0)


def _first_batches(data: Any, batch_size: int | None, batches: int, seed: int) -> list[Any]:

    from normscope.problem.isolation import RandomGenerators

    if not isinstance(data, Iterable) or isinstance(data, str):
        raise ArgumentTypeError(
            "the data must be a pair (inputs, targets), a list of batches or a DataLoader, got "
            f"{type(data).__name__}."
        )
    _refuse_size(data, batch_size)
    with RandomGenerators(data).preserved(seed):
        taken = list(islice(data, batches))  # a DataLoader may shuffle
    if len(taken) < batches:
        raise InputError(f"the data has {_counted(len(taken))}, {batches} are asked for.")
    return taken


def _refuse_size(data: Any, batch_size: int | None) -> None:
    """Nobody cuts batches anew that the data comes in, if it does."""
    if isinstance(data, (tuple, list)) and not data:
        raise InputError("the data is empty; give at least one batch.")
    if batch_size is None:
        return
    raise InputError(
        "the data comes in batches of its own; leave the batch size out, or return one pair "
        "(inputs, targets) of all samples."
    )


def _samples(count: int) -> str:
    return f"{count} sample{'' if count == 1 else 's'}"


def _counted(batches: int) -> str:
    return f"{batches} batch{'' if batches == 1 else 'es'}"
