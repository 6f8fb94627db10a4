"""Batches that a command works on: of the size asked for, or of 256 samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from normscope.cli import sources
from normscope.cli.render import print_to_stderr
from normscope.cli.sources import Source
from normscope.errors import ArgumentTypeError, InputError, NormscopeError
from normscope.text import join_words, plural

DEFAULT_BATCH_SIZE = 256
_NESTED = (tuple, list, Mapping)


def _default_batch_size(samples: int, batches: int = 1) -> int:
    """Return 256, or less if the data has fewer samples, which a note on stderr reports."""
    size = min(DEFAULT_BATCH_SIZE, samples // batches)
    if 0 < size < DEFAULT_BATCH_SIZE:
        wanted = plural(batches, "batch", "batches")
        print_to_stderr(
            f"the data has {plural(samples, 'sample')}, too few for {wanted} of the default size "
            f"{DEFAULT_BATCH_SIZE}; the batch size is {size} instead."
        )
    return size


def load_problem(
    source: Source,
    norm: str | None,
    options: Sequence[str] | None,
    seed: int,
    device: str | None,
    batches: int | None = None,
    batch_size: int | None = None,
) -> tuple[tuple[Any, Any, Any], Any]:
    """Return model, loss and batches, and the data that the batches are from.

    A note on stderr reports a conversion of the data.

    Args:
        source: names or import paths of model, data and loss.
        norm: of a registered model.
        options: of a registered model, each ``name=value``.
        seed: of the weights, and of the samples that are drawn.
        device: of the model; None for its own.
        batches: how many batches; None for all data, as it is loaded.
        batch_size: samples in a batch; None for the default.
    """
    samples = sources.load_data(source.data, seed)
    chosen = samples if batches is None else choose_batches(samples, batch_size, batches, seed)
    network = sources.load_model(source.model, samples, norm, options or (), seed, device)
    note_conversion(chosen, network)
    return (network, sources.load_loss(source.loss), chosen), samples


def choose_batches(data: Any, batch_size: int | None, batches: int, seed: int = 0) -> list[Any]:
    """Return some batches of the data, the same for the same seed.

    Args:
        data: a pair (inputs, targets), another tuple or a dictionary, of which samples are drawn
            without replacement; a batch whose rows are not samples, such as a graph, which is
            taken whole; or an iterable of batches, of which the first are taken as they are.
        batch_size: samples in a batch; None for 256, or all if there are fewer.
        batches: how many batches.
        seed: of the draw.

    Raises:
        InputError: if there are too few samples or batches, or ``batch_size`` does not apply.
        ArgumentTypeError: if the data is neither.
    """
    import torch

    from normscope.problem.batch import (
        check_filled,
        has_samples,
        is_graph,
        random_rows,
        sample_count,
        split_batch,
    )
    from normscope.problem.model_call import check_pair

    is_tuple = isinstance(data, tuple) and len(data) > 1
    if not (is_tuple or isinstance(data, Mapping) or is_graph(data)):
        return _first_batches(data, batch_size, batches, seed)
    is_pair = is_tuple and len(data) == 2 and not any(isinstance(part, _NESTED) for part in data)
    (check_pair if is_pair else check_filled)(data)
    if batch_size is None and batches == 1 and not has_samples(data):
        return [data]
    samples = sample_count(data)
    size = _default_batch_size(samples, batches) if batch_size is None else batch_size
    if size < 1 or size * batches > samples:
        raise InputError(
            f"the data has {plural(samples, 'sample')}, too few for "
            f"{plural(batches, 'batch', 'batches')} of {max(size, 1)}; ask for fewer or smaller "
            "ones."
        )
    generator = torch.Generator().manual_seed(seed)
    return split_batch(random_rows(data, size * batches, generator), size)


def _first_batches(data: Any, batch_size: int | None, batches: int, seed: int) -> list[Any]:
    from normscope.problem.isolation import RandomGenerators

    if not isinstance(data, Iterable) or isinstance(data, str):
        raise ArgumentTypeError(
            "the data must be a pair (inputs, targets), a list of batches or a DataLoader, got "
            f"{type(data).__name__}."
        )
    _reject_batch_size(data, batch_size)
    with RandomGenerators(data).preserved(seed):
        taken = list(islice(data, batches))  # a DataLoader may shuffle
    if len(taken) < batches:
        found = plural(len(taken), "batch", "batches")
        raise InputError(f"the data has {found}, {batches} are asked for.")
    return taken


def _reject_batch_size(data: Any, batch_size: int | None) -> None:
    """Raise an error for a batch size if the data is batched already."""
    if isinstance(data, (tuple, list)) and not data:
        raise InputError("the data is empty; give at least one batch.")
    if batch_size is None:
        return
    raise InputError(
        "the data comes in batches of its own; leave the batch size out, or return one pair "
        "(inputs, targets) of all samples."
    )


def step_batch_size(samples: Any, batch_size: int | None) -> int | None:
    """Return the batch size of a training step; None for data that is batched already.

    Args:
        samples: as `load_data` returns it.
        batch_size: the size asked for; None for 256, or all samples if there are fewer.

    Raises:
        InputError: if the data is batched and a size is asked for, or has too few samples.
        ArgumentTypeError: if a size is asked for and the data cannot be read twice.
    """
    if not isinstance(samples, (tuple, Mapping)) or not samples:
        is_iterable = isinstance(samples, Iterable) and not isinstance(samples, (str, Iterator))
        if batch_size is not None and not is_iterable:
            raise ArgumentTypeError(
                "the data must be a batch (inputs, targets), a list of batches or a DataLoader, "
                f"which can be read again, got {type(samples).__name__}."
            )
        _reject_batch_size(samples, batch_size)
        return None
    count = samples_of(samples)
    if count is None:
        return batch_size
    if count == 0:
        raise InputError("the data is empty; give at least one sample.")
    if batch_size is None:
        return _default_batch_size(count)
    if batch_size > count:
        raise InputError(
            f"the data has {plural(count, 'sample')}, too few for a batch of {batch_size}; leave "
            f"the batch size out for batches of {min(DEFAULT_BATCH_SIZE, count)}, or ask for a "
            "smaller one."
        )
    return batch_size


def samples_of(batch: Any) -> int | None:
    """Return the samples of a batch; None if its rows are not samples, as those of a graph."""
    from normscope.problem.batch import sample_count

    try:
        return sample_count(batch)
    except NormscopeError:
        return None


def note_conversion(data: Any, model: Any) -> None:
    """Print a note on stderr if the data has another dtype than the model and is converted.

    Args:
        data: a pair (inputs, targets), a list of batches or a DataLoader of tensors in memory;
            others are not read, since drawing a batch may change what is drawn later.
        model: whose first floating-point parameter or buffer has its dtype.
    """
    tensors = chain(model.parameters(), model.buffers())
    own = next((each.dtype for each in tensors if each.is_floating_point()), None)
    found = {
        what: values.dtype
        for what, values in zip(("inputs", "targets"), _tensors_in_memory(data), strict=False)
        if getattr(getattr(values, "dtype", None), "is_floating_point", False)
    }
    other = {what: given for what, given in found.items() if own is not None and given != own}
    if other:
        given = next(iter(other.values()))  # mostly that of both
        given_name, own_name = (str(each).removeprefix("torch.") for each in (given, own))
        print_to_stderr(
            f"the {join_words(list(other))} are {given_name}, the model {own_name}: they are "
            "converted."
        )


def _tensors_in_memory(data: Any) -> Sequence[Any]:
    """Return the inputs and targets in memory, of all samples or of the first batch."""
    if isinstance(data, list) and data:
        data = data[0]
    held = getattr(getattr(data, "dataset", None), "tensors", data)  # of a TensorDataset
    return held if isinstance(held, (tuple, list)) else ()
