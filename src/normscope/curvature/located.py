"""Where in the user's data the first value stands that a model or a loss refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from normscope.curvature.batch import Batch, sample_count, tensors_of
from normscope.curvature.problem import Problem
from normscope.errors import InputError, StateError
from normscope.losses import WrongLabelError

__all__ = ["locating"]


@contextmanager
def locating(problem: Problem) -> Iterator[None]:
    """Let an error about values inside say in which sample of the data the first of them is.

    Args:
        problem: whose data, one batch or a list of batches, is looked through; what is drawn on
            demand is not, since to draw it may change what is drawn later.

    Raises:
        InputError: the one about a label, with its sample.
        StateError: the one about values that are not finite, with the sample.
    """
    try:
        yield
    except WrongLabelError as error:
        label = error.label
        raise InputError(
            f"{error}{_place(problem, lambda tensor: tensor == label, _targets_of)}"
        ) from error
    except StateError as error:
        place = _place(problem, _is_not_finite)
        if not place:  # it is about something else than the data
            raise
        raise StateError(f"{error}{place}") from error


def _is_not_finite(tensor: Tensor) -> Tensor:
    return ~torch.isfinite(tensor)


def _targets_of(batch: Batch) -> list[Tensor]:
    """The labels of a pair; inputs may be whole numbers too."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return [batch[1]]
    return []


def _place(
    problem: Problem,
    is_bad: Callable[[Tensor], Tensor],
    looked_at: Callable[[Batch], Iterable[Tensor]] = tensors_of,
) -> str:
    """The first sample with such a value, as a sentence; "" if none is found."""
    listed = isinstance(problem.data, list)
    batches = problem.data if listed else [problem.data] if problem.is_one_batch else []
    for number, batch in enumerate(batches):
        row = _first_row(batch, is_bad, looked_at)
        if row is not None:
            of = f"batch {number} of the data" if listed else "the data"
            return f" The first such sample is number {row} of {of}, counted from 0."
    return ""


def _first_row(
    batch: Batch,
    is_bad: Callable[[Tensor], Tensor],
    looked_at: Callable[[Batch], Iterable[Tensor]],
) -> int | None:
    samples = sample_count(batch)
    found = []
    for tensor in looked_at(batch):
        if tensor.dim() and len(tensor) == samples and samples:
            bad = is_bad(tensor.detach()).reshape(samples, -1).any(1)
            found += bad.nonzero().flatten()[:1].tolist()
    return min(found, default=None)
