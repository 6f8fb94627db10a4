"""Walks: where a few steps of training lead, with nothing of the model changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from normscope.curvature.batch import Batch
from normscope.curvature.evaluation import Evaluator
from normscope.curvature.layout import parameter_layout
from normscope.curvature.problem import Problem
from normscope.learning_rate.onset import growth_limit
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rules import UpdateRule

__all__ = ["Walk", "Walks", "gradient_on"]

_FALLEN = 0.95  # of its first value on the same batch: then a loss has begun to fall


class Walks:
    """What all walks from one start share.

    Args:
        problem: model, loss and data; nothing of it is changed.
        batches: one for each step, in turn.
        preconditioner: what the steps are divided by; None for SGD.
        seed: of dropout and noise.
        start: parameters that begin elsewhere than at the present weights.
    """

    def __init__(
        self,
        problem: Problem,
        batches: Sequence[Batch],
        preconditioner: Preconditioner | None = None,
        seed: int = 0,
        start: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.problem, self.batches = problem, batches
        self.preconditioner, self._seed = preconditioner, seed
        self.layout = parameter_layout(problem.model)
        self._problems = [Problem(problem.model, problem.loss, [batch]) for batch in batches]
        whole = Evaluator(self._problems[0], self.layout, "train", seed)
        self._evaluator = whole.on(self._problems[0], start)
        self._first = dict[int, float]()

    def beginning_at(self, number: int, point: Mapping[str, Tensor]) -> Walks:
        """Walks from another point, the batches in turn from a step's on."""
        place = number % len(self.batches)
        batches = [*self.batches[place:], *self.batches[:place]]
        return Walks(self.problem, batches, self.preconditioner, self._seed, point)

    @cached_property
    def start(self) -> tuple[Tensor, float, Tensor]:
        """Where all walks begin, as a flat vector, with loss and gradient of the first batch."""
        position = self.layout.join(self._evaluator.leaves()).detach()
        return position, *gradient_on(self._evaluator, self.batches[0])

    def first_loss(self, number: int) -> float:
        """The loss of a step's batch at the start.

        Args:
            number: of the step.

        Returns:
            The loss before any step.
        """
        place = number % len(self.batches)
        if place not in self._first:
            self._first[place] = _loss_on(self.evaluator(place), self.batches[place])
        return self._first[place]

    def evaluator(self, number: int, point: Mapping[str, Tensor] | None = None) -> Evaluator:
        """The model on the batch of a step.

        Args:
            number: of the step.
            point: the parameters; None for those of the start.

        Returns:
            Model, loss and that one batch.
        """
        return self._evaluator.on(self._problems[number % len(self.batches)], point)


class Walk:
    """Steps from the start on the batches in turn, by an optimizer's rule; without weight decay.

    Args:
        walks: model, loss and batches.
        rule: of the optimizer.
        rate: the learning rate.
    """

    def __init__(self, walks: Walks, rule: UpdateRule, rate: float) -> None:
        self._walks, self._rule, self.rate = walks, rule, rate
        self._velocity: Tensor | None = None
        self.taken = 0
        self.point: dict[str, Tensor] = {}
        self._position, loss, self._gradient = walks.start
        self._ratio = self._ratio_of(loss)

    def here(self) -> Evaluator:
        """The model where the walk stands, on the batch that comes next."""
        return self._walks.evaluator(self.taken, self.point)

    @property
    def is_broken(self) -> bool:
        """Whether the loss where the walk stands is unstable, by the project's definition."""
        return not self._ratio <= growth_limit(self._walks.problem.loss)

    @property
    def has_fallen(self) -> bool:
        """Whether the loss where the walk stands is at most 95 % of the same batch's first."""
        return self._ratio <= _FALLEN

    def take(self, steps: int) -> Walk:
        """Go on as long as the loss does not break.

        Args:
            steps: how many at most.

        Returns:
            The walk itself.
        """
        for _ in range(steps):
            if self.is_broken:
                break
            self._step()
        return self

    def _step(self) -> None:
        layout = self._walks.layout
        step = self._along(self._gradient)
        self._position = torch.sub(self._position, step, alpha=self.rate)
        kinds = self.here().point
        self.point = {
            name: tensor.to(kinds[name].dtype)
            for name, tensor in zip(layout.names, layout.split(self._position), strict=True)
        }
        if any(tensor.dtype != layout.dtype for tensor in self.point.values()):
            self._position = layout.join(list(self.point.values()))  # rounded, as training does
        self.taken += 1
        self._look()

    def _look(self) -> None:
        """Loss and gradient where the walk stands."""
        evaluator = self.here()
        loss, self._gradient = gradient_on(evaluator, evaluator.problem.data[0])
        self._ratio = self._ratio_of(loss)

    def _ratio_of(self, loss: float) -> float:
        """Over the first loss of the same batch; one that is not positive has no scale."""
        first = self._walks.first_loss(self.taken)
        if not math.isfinite(loss):
            return math.nan
        return loss / first if first > 0 else 0.0

    def _along(self, gradient: Tensor) -> Tensor:
        """The optimizer's step for a gradient, at a learning rate of one."""
        scale, rule = self._walks.preconditioner, self._rule
        divided = gradient if scale is None else gradient / scale.scale
        if self._velocity is None:  # torch's first buffer, and Adam's mean without its start
            self._velocity = divided
        else:
            self._velocity = rule.momentum * self._velocity + (1 - rule.dampening) * divided
        return divided + rule.momentum * self._velocity if rule.nesterov else self._velocity


def _loss_on(evaluator: Evaluator, batch: Batch) -> float:
    """The loss on one batch, by a forward pass alone."""
    with evaluator.scene(evaluator.leaves()), torch.no_grad():
        return evaluator.problem.loss_on(evaluator.problem.placed(batch)).item()


def gradient_on(evaluator: Evaluator, batch: Batch) -> tuple[float, Tensor]:
    """Loss and gradient on one batch; nothing is changed.

    Args:
        evaluator: model and loss at a point.
        batch: as the problem's data has it.

    Returns:
        The loss, and the gradient as a flat vector in the layout's order.
    """
    placed = evaluator.problem.placed(batch)
    leaves = evaluator.leaves()
    with evaluator.scene(leaves):
        loss = evaluator.problem.loss_on(placed)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return loss.item(), evaluator.layout.join(gradients).detach()
