"""What a training does around its steps: rates of groups, schedules, accumulated batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import torch
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from normscope.errors import NormscopeError
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.thresholds import (
    CONSTANT_SCHEDULE,
    ENDED_SCHEDULE,
    JOINED_DISTANCE,
    SCHEDULE_STEPS,
    STEPS,
)
from normscope.learning_rate.trial_run import gradient_on
from normscope.learning_rate.update_rule import Preconditioner, UpdateRule, preconditioner_of
from normscope.problem.batch import Batch, join_batches
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import parameter_layout
from normscope.text import join_words
from normscope.training.common_rate import relative_rates


@dataclass(frozen=True)
class GroupRates:
    """Learning rates of every parameter group, for a common rate of 1.

    Args:
        relative: before any schedule.
        peak: the largest within a short run.
        largest: of all groups in the whole schedule.
        are_peaks: whether the common rate is the ``max_lr`` of a scheduler.
        are_constant: whether the schedule changes them by a few per cent at most in a short run.
        turns: whether the schedule ends within a short run, or rises again after it fell.
    """

    relative: tuple[float, ...]
    peak: tuple[float, ...]
    largest: float
    are_peaks: bool = False
    are_constant: bool = True
    turns: bool = False

    @classmethod
    def of(cls, setup: TrainingSetup, optimizer: Optimizer) -> Self:
        """Return the rates of a setup.

        Args:
            setup: for its schedule.
            optimizer: of the user, or what the factory made; not changed.
        """
        by_step = setup.scheduled_rates(optimizer, SCHEDULE_STEPS)
        groups = list(zip(*by_step[:STEPS], strict=True))
        peak = tuple(map(max, groups))
        if setup.scheduler is None:
            return cls(tuple(relative_rates(optimizer)), peak, max(map(max, by_step)))
        scheduled = setup.scheduled(optimizer)
        largest = 1.0 if scheduled.has_own_rates else max(map(max, by_step))
        constant = all(max(each) <= CONSTANT_SCHEDULE * min(each) for each in groups)
        turns = len(by_step) < STEPS or any(map(_turns, groups))
        relative = tuple(scheduled.group_rates)
        return cls(relative, peak, largest, scheduled.has_own_rates, constant, turns)

    @property
    def are_one(self) -> bool:
        """Whether every parameter has the common rate in all steps that count."""
        return set(self.relative) == set(self.peak) == {1.0}


def _turns(rates: Sequence[float]) -> bool:
    """Return whether rates fall to almost nothing, or rise again after they fell."""
    pairs = list(pairwise(rates))
    fell = next((at for at, (before, after) in enumerate(pairs) if after < before), None)
    if fell is None:
        return False
    rises = any(after > CONSTANT_SCHEDULE * before for before, after in pairs[fell:])
    return rises or min(rates[fell:]) < ENDED_SCHEDULE * max(rates)


def no_prediction(
    setup: TrainingSetup,
    rule: UpdateRule,
    preconditioner: Preconditioner | None,
    rates: GroupRates,
) -> str | None:
    """Return why the limit cannot be predicted, in a few words; None if it can.

    Args:
        setup: problem, optimizer and what happens around its steps.
        rule: of the optimizer.
        preconditioner: of the optimizer, with the relative rates of its groups.
        rates: of the groups and the schedule.
    """
    if rule.unknown is not None:
        return rule.unknown
    if setup.clip_norm is not None:
        return "it does not know gradient clipping"
    if not rates.are_constant:
        return f"it is for a rate that is constant over {STEPS} steps, which the schedule's is not"
    own_rates = preconditioner is not None and preconditioner.has_group_rates
    if own_rates and preconditioner is not None and not preconditioner.is_given:
        return f"it knows one learning rate only for {rule.name} before its first step"
    return None


def setup_notes(
    setup: TrainingSetup, rates: GroupRates, unjoined: str | None = None
) -> tuple[str, ...]:
    """Return a sentence for each thing around the steps that the answer depends on.

    Args:
        setup: problem, optimizer and what happens around its steps.
        rates: of its groups and schedule.
        unjoined: why the curvature is that of single batches; None if it is that of a step's.
    """
    notes = []
    if set(rates.relative) != {1.0}:
        ratios = join_words([f"{each:.3g}" for each in rates.relative])
        notes.append(
            "All rates are those of the fastest parameter group; the groups keep their ratios to "
            f"it ({ratios}), and rates() returns each group's. The curvature counts these ratios."
        )
    if rates.are_peaks:
        notes.append("All rates are the max_lr of the schedule, which the runs follow.")
    elif setup.scheduler is not None:
        times = "" if rates.largest <= 1.01 else f"; its largest is {rates.largest:.3g} times that"
        notes.append(f"All rates are those before the schedule, which the runs follow{times}.")
    if rates.turns:
        notes.append(
            f"The schedule ends or rises again within {STEPS} updates. The runs step it after "
            "every update: give its length in updates, not in epochs."
        )
    if max(rates.peak) < 0.99 * rates.largest:
        reached = max(rates.peak) / rates.largest
        notes.append(
            f"The {STEPS} steps of a run reach {reached:.2g} times the schedule's largest rate: "
            "later steps may break at lower rates than the limit found."
        )
    if setup.clip_norm is not None:
        notes.append(
            f"The runs clip gradients at the norm {setup.clip_norm:g}; the curvature does not "
            "count that."
        )
    if setup.accumulate > 1:
        each = "" if unjoined is None else "; the curvature is that of single batches"
        notes.append(f"A step has the mean gradient of {setup.accumulate} batches{each}.")
    return tuple(notes)


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
    if not distance <= JOINED_DISTANCE:
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


def preconditioner_at(
    setup: TrainingSetup,
    batches: list[Batch],
    optimizer: Optimizer,
    rule: UpdateRule,
    rates: GroupRates,
) -> Preconditioner | None:
    """Return what the optimizer and its groups divide the gradient by; None if it is constant.

    Args:
        setup: for the model and its loss.
        batches: whose gradients give a second moment that the optimizer does not have yet.
        optimizer: of the user, or what the factory made; not changed.
        rule: of the optimizer.
        rates: of its groups.
    """
    if rule.unknown is not None or (rule.is_exact and rates.are_one):
        return None
    layout = parameter_layout(setup.problem.model)
    evaluator = Evaluator(setup.problem, layout, setup.mode, setup.seed)
    needed = [] if rule.is_exact else batches
    gradients = [gradient_on(evaluator, batch) for batch in needed]
    parameters = dict(setup.problem.model.named_parameters())
    return preconditioner_of(optimizer, rule, parameters, layout, gradients, rates.peak)
