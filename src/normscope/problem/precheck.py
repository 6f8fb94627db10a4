"""Evaluate a few batches first, so that bad data fails before the work starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from normscope.errors import InputError, StateError
from normscope.problem.batch import Batch, rows, sample_count, tensors_of
from normscope.problem.diagnose import is_finite
from normscope.problem.evaluate import Evaluator
from normscope.problem.loss import WrongLabelError
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem

__all__ = ["locating", "look_over", "try_batches"]

Range = tuple[int, int] | None


def try_batches(problem: Problem, batches: Sequence[Batch], mode: str, seed: int) -> None:
    """Evaluate the loss once on every batch, so that one it cannot be had on is found at once.

    Args:
        problem: model and loss; nothing of it is changed.
        batches: of its data.
        mode: train, frozen or eval.
        seed: of dropout and noise.
    """
    evaluator = Evaluator(problem, parameter_layout(problem.model), mode, seed)
    for number, batch in enumerate(batches):
        evaluator(problem.placed(batch), number)


def look_over(
    problem: Problem, batches: Sequence[Batch], batch_size: int | None, seed: int
) -> None:
    """Try batches, and of data in memory what is unlike them: a training will meet it too.

    Samples with a value that is not finite, and those with the least and the greatest whole number
    outside the range of those tried, are evaluated too; whether they are wrong is for the model
    and the loss to say.

    Args:
        problem: model, loss and data; nothing of it is changed.
        batches: of the data, as a training would see them first.
        batch_size: samples per step, drawn from data that is one batch; None: as the data has them.
        seed: of dropout and noise.
    """
    with locating(problem):
        try_batches(problem, batches, "train", seed)
        try_batches(problem, _unlike(problem, _ranges(batches), batch_size), "train", seed)


def _unlike(problem: Problem, known: Sequence[Range], batch_size: int | None) -> list[Batch]:
    """Batches of what is farthest from what is known; none of data that is drawn on demand."""
    if isinstance(problem.data, list):
        return _farthest_batches(problem.data, known)
    if problem.is_one_batch and batch_size is not None and _is_odd(problem.data, known):
        return _batches_of_odd_rows(problem.data, known, batch_size)
    return []


def _ranges(batches: Sequence[Batch]) -> list[Range]:
    """Least and greatest whole number at each place of the batches; None where there are reals."""
    columns = zip(*(tensors_of(batch) for batch in batches), strict=False)
    return [
        None
        if any(map(_has_reals, tensors)) or not all(tensor.numel() for tensor in tensors)
        else (min(int(t.min()) for t in tensors), max(int(t.max()) for t in tensors))
        for tensors in columns
    ]


def _is_odd(batch: Batch, known: Sequence[Range]) -> bool:
    pairs = zip(tensors_of(batch), known, strict=False)
    return any(
        not is_finite(tensor)
        if among is None or _has_reals(tensor)
        else bool(((tensor < among[0]) | (tensor > among[1])).any())
        for tensor, among in pairs
    )


def _excess(batch: Batch, known: Sequence[Range], parts: int) -> Tensor:
    """By how much each part of a batch is odd: a row below and one above for each of its tensors.

    Whole numbers count from the ends of their range; a value that is not finite counts 1.
    """
    found = [torch.zeros(parts, dtype=torch.float64)]
    for tensor, among in zip(tensors_of(batch), known, strict=False):
        if not tensor.numel():
            continue
        flat = tensor.detach().reshape(parts, -1)
        if among is None or _has_reals(tensor):
            bad = (~torch.isfinite(flat)).any(1).cpu().double()
            found += [bad, bad]
        else:
            low, high = flat.amin(1).cpu().double(), flat.amax(1).cpu().double()
            found += [among[0] - low, high - among[1]]
    return torch.stack(found).clamp(min=0)


def _farthest_batches(batches: Sequence[Batch], known: Sequence[Range]) -> list[Batch]:
    """The batches that are odd by most, each once: one for each end of each range at most."""
    farthest: dict[int, tuple[float, Batch]] = {}
    for batch in batches:
        if _is_odd(batch, known):
            for end, value in enumerate(_excess(batch, known, 1).flatten().tolist()):
                if value > farthest.get(end, (0.0, None))[0]:
                    farthest[end] = (value, batch)
    return list({id(batch): batch for _, batch in farthest.values()}.values())


def _batches_of_odd_rows(batch: Batch, known: Sequence[Range], size: int) -> list[Batch]:
    """Batches of the samples that are odd by most, filled up with odd ones, then with others."""
    excess = _excess(batch, known, sample_count(batch))
    farthest = [int(end.argmax()) for end in excess if bool(end.any())]
    odd = excess.any(0)
    order = [*farthest, *odd.nonzero().flatten().tolist(), *(~odd).nonzero().flatten().tolist()]
    unique = torch.tensor(list(dict.fromkeys(order)), device=next(tensors_of(batch)).device)
    starts = range(0, len(set(farthest)), size)
    return [rows(batch, unique[start : start + size]) for start in starts]


def _has_reals(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


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
