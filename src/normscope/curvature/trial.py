"""A first look at the data: what the model or the loss will refuse is refused before the work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from normscope.curvature.batch import Batch, rows, tensors_of
from normscope.curvature.evaluation import Evaluator
from normscope.curvature.failures import is_finite
from normscope.curvature.layout import parameter_layout
from normscope.curvature.problem import Problem

__all__ = ["look_over", "try_batches"]

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

    Samples with a value that is not finite, or with a whole number outside the range of those
    tried, are evaluated too; whether they are wrong is for the model and the loss to say.

    Args:
        problem: model, loss and data; nothing of it is changed.
        batches: of the data, as a training would see them first.
        batch_size: samples per step, drawn from data that is one batch; None: as the data has them.
        seed: of dropout and noise.
    """
    try_batches(problem, batches, "train", seed)
    known = _ranges(batches)
    if isinstance(problem.data, list):
        odd = (batch for batch in problem.data if _is_odd(batch, known))
        try_batches(problem, list(islice(odd, 1)), "train", seed)
    elif problem.is_one_batch and batch_size is not None and _is_odd(problem.data, known):
        chosen = _with_odd_rows(problem.data, known, batch_size)
        try_batches(problem, [chosen], "train", seed)


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
        not is_finite(tensor) if _has_reals(tensor) else bool(_odd(tensor, among).any())
        for tensor, among in pairs
    )


def _odd(tensor: Tensor, among: Range) -> Tensor:
    """Which values are not finite, or not in the range."""
    if among is None or _has_reals(tensor):
        return ~torch.isfinite(tensor)
    return (tensor < among[0]) | (tensor > among[1])


def _with_odd_rows(batch: Batch, known: Sequence[Range], size: int) -> Batch:
    """A batch of the odd samples, filled up with others."""
    marks = [
        _odd(tensor, among).reshape(len(tensor), -1).any(1).cpu()
        for tensor, among in zip(tensors_of(batch), known, strict=True)
    ]
    odd = torch.stack(marks).any(0)
    order = torch.cat([odd.nonzero().flatten(), (~odd).nonzero().flatten()])[:size]
    device = next(tensors_of(batch)).device
    return rows(batch, order.to(device))


def _has_reals(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
