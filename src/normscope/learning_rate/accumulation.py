"""The batch of a step that accumulates gradients over several batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.modules.dropout import _DropoutNd

from normscope.errors import NormscopeError
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.trial_run import gradient_on
from normscope.problem.batch import Batch, join_batches
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import parameter_layout

_TOLERANCE = 0.01  # of the gradient's norm: rounding is far below, batch statistics far above


def effective_batches(setup: TrainingSetup, count: int) -> tuple[list[Batch], str | None]:
    """Return the batches of the first steps, each joined from those whose gradients accumulate.

    Call it inside ``setup.isolated()``.

    Args:
        setup: model, loss, data and how many batches a step takes.
        count: number of steps, at most.

    Returns:
        The joined batches and None. If they cannot be joined, or if the gradient of the joined
        batch is not the mean of theirs, as with batch statistics or a sum over samples: the single
        batches, and the reason.
    """
    if setup.accumulate == 1:
        return setup.batches(count), None
    parts = setup.batches(count * setup.accumulate)
    starts = range(0, len(parts), setup.accumulate)
    chunks = [parts[start : start + setup.accumulate] for start in starts]
    if len(chunks) > 1 and len(chunks[-1]) < setup.accumulate:
        del chunks[-1]
    try:
        joined = [join_batches(chunk) for chunk in chunks]
        distance = _gradient_distance(setup, chunks[0], joined[0])
    except (NormscopeError, RuntimeError, TypeError, ValueError):
        return parts[:count], "the accumulated batches do not fit into one"
    if not distance <= _TOLERANCE:
        reason = "the gradient of the accumulated batches is not that of one joined batch"
        return parts[:count], reason
    return joined, None


def _gradient_distance(setup: TrainingSetup, parts: Sequence[Batch], joined: Batch) -> float:
    """Return the relative distance of a joined batch's gradient from the mean, without dropout."""
    model = setup.problem.model
    with setup.isolated():
        for module in model.modules():
            if isinstance(module, _DropoutNd):
                module.p = 0.0  # the masks of a joined batch are others
        evaluator = Evaluator(setup.problem, parameter_layout(model), setup.mode, setup.seed)
        gradients = [gradient_on(evaluator, part) for part in parts]
        mean = torch.stack(gradients).mean(0)
        return float((gradient_on(evaluator, joined) - mean).norm() / mean.norm())
