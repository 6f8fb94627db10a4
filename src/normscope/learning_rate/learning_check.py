"""Whether training learns at the recommended rate, or weight decay undoes what it learns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.learning_rate.network_properties import constant_output_loss
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.stability import WeightNorms
from normscope.learning_rate.thresholds import (
    CHECK_GONE,
    CHECK_STEPS,
    CHOICE_LEARNED,
    PREDICTION_BATCHES,
    RISEN,
    STEPS,
)
from normscope.problem.batch import Batch, copy_batch
from normscope.problem.problem import Problem
from normscope.text import Rendered


@dataclass(frozen=True)
class LearningCheck(Rendered):
    """A run at the recommended rate, longer than the trials that chose it.

    Args:
        rate: the learning rate.
        steps: of the run.
        first: loss of the first step.
        early: mean loss of the second quarter of the steps.
        late: mean loss of the last quarter.
        kept: largest share of its norm that a weight has left.
        constant: loss at the end over that of a constant output: the mean one, or the best one if
            it is known. None if the loss is not a function of one output tensor.
    """

    rate: float
    steps: int
    first: float
    early: float
    late: float
    kept: float
    constant: float | None

    @property
    def learned_nothing(self) -> bool:
        """Whether the outputs are no better than a constant, or the loss is not lower."""
        if self.constant is not None:
            return not self.constant < CHOICE_LEARNED
        return not self.late < CHOICE_LEARNED * self.first or self.kept < CHECK_GONE

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence about what the weight decay does to learning, if it does much."""
        remedy = "the weights shrink to zero; use less weight decay."
        if self.learned_nothing:
            return (
                f"Nothing is learned at the recommended rate: after {self.steps} steps the outputs "
                f"are no better than a constant, since {remedy}",
            )
        if self.late <= RISEN * self.early:
            return ()
        return (
            f"At the recommended rate the loss rises again, from {self.early:.3g} to "
            f"{self.late:.3g} within {self.steps} steps, since {remedy}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, and whether nothing is learned."""
        return {**super().to_dict(), "learned_nothing": self.learned_nothing}


def check_learning(
    setup: TrainingSetup, rate: float, weight_decay: float | None = None
) -> LearningCheck:
    """Train at a rate and compare the outputs with a constant; the model is restored.

    Args:
        setup: the problem with its optimizer and batch size.
        rate: the learning rate.
        weight_decay: in place of the optimizer's own; None: that.
    """
    # a schedule may have no more steps than a run that verifies the limit
    steps = CHECK_STEPS if setup.scheduler is None else STEPS
    with setup.training(rate, weight_decay=weight_decay) as optimizer:
        weights = WeightNorms(setup.problem.model)
        loop = setup.loop(optimizer)
        losses = [step.loss for step in loop.run(steps)]
        batches = [loop.batches.draw() for _ in range(PREDICTION_BATCHES)]
        constant = _over_constant(setup.problem, batches)
        kept = max(weights.shares(), default=1.0)
    quarter = max(1, len(losses) // 4)
    early, late = losses[quarter : 2 * quarter], losses[-quarter:]
    means = statistics.fmean(early or late), statistics.fmean(late)
    return LearningCheck(rate, len(losses), losses[0], *means, kept, constant)


def _over_constant(problem: Problem, batches: Sequence[Batch]) -> float | None:
    """Return the mean loss over that of a constant output; None if there is no such loss."""
    if not problem.has_outputs:
        return None
    with torch.no_grad():
        outputs = [problem.output_on(copy_batch(batch)) for batch in batches]
        if not all(isinstance(each, Tensor) and each.dim() for each in outputs):
            return None
        if len({each.shape[1:] for each in outputs}) > 1:
            return None
        mean = torch.cat(outputs).mean(0, keepdim=True)
        constants = [mean.expand_as(each).clone() for each in outputs]
        own, constant = (_mean_loss(problem, each, batches) for each in (outputs, constants))
    best = constant_output_loss(problem, batches)
    constant = constant if best is None else min(constant, best)
    return own / constant if constant > 0 else None


def _mean_loss(problem: Problem, outputs: Sequence[Tensor], batches: Sequence[Batch]) -> float:
    pairs = zip(outputs, map(problem.target_of, batches), strict=True)
    return statistics.fmean(problem.loss_of(output, target).item() for output, target in pairs)
