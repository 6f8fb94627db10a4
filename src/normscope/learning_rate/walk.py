"""Walks: where a few steps of training lead, with nothing of the model changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from normscope.learning_rate.onset import growth_limit
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.updates import Updates
from normscope.problem.batch import Batch, copied
from normscope.problem.evaluate import Evaluator
from normscope.problem.isolation import generators_of_model, seed_randomness, substituted
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem

__all__ = ["FALLEN", "Walk", "Walks", "gradient_on"]

Leaves: TypeAlias = tuple[Tensor, ...]  # the parameters, in the layout's order
Gradients: TypeAlias = tuple[Tensor | None, ...]  # of each; None where the loss has none of it
FALLEN = 0.95  # of its first value on the same batch: then a loss has begun to fall


class Walks:
    """What all walks from one start share.

    Attributes:
        gradients: how many have been taken.

    Args:
        problem: model, loss and data; nothing of it is changed.
        batches: one for each step, in turn.
        preconditioner: what the steps are divided by, always the same; None: what the optimizer's
            own rule makes of the gradients.
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
        self.placed = [problem.placed(batch) for batch in batches]
        whole = Evaluator(self._problems[0], self.layout, "train", seed)
        self._evaluator = whole.on(self._problems[0], start)
        self._generators = generators_of_model(problem.model)
        self._is_held = False
        self.gradients = 0

    def beginning_at(self, number: int, point: Mapping[str, Tensor]) -> Walks:
        """Walks from another point, the batches in turn from a step's on."""
        place = number % len(self.batches)
        batches = [*self.batches[place:], *self.batches[:place]]
        return Walks(self.problem, batches, self.preconditioner, self._seed, point)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Set the model up once for all that is walked inside, and nothing else.

        Buffers begin anew with every walk; plain attributes that a forward pass changes do not.
        """
        with self.scene(self._evaluator.leaves()):
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False

    def scene(self, leaves: Leaves) -> AbstractContextManager[None]:
        """The model set up for first derivatives by these parameters."""
        if not self._is_held:
            return self._evaluator.scene(leaves, twice=False)
        model, point = self.problem.model, self._evaluator.point
        # buffers are copied anew: no walk sees what another has made of them
        copies = {name: point[name].clone() for name, _ in model.named_buffers()}
        return substituted(model, copies | dict(zip(self.layout.names, leaves, strict=True)))

    @cached_property
    def start(self) -> tuple[Leaves, float, Gradients]:
        """Where all walks begin, with loss and gradients of the first batch."""
        leaves = self._evaluator.leaves()
        with self.scene(leaves):
            return leaves, *self.differentiated(0, leaves)

    @cached_property
    def first_losses(self) -> list[float]:
        """The loss of every batch at the start, by a forward pass each."""
        losses = []
        with self.scene(self._evaluator.leaves()), torch.no_grad():
            for batch in self.placed:
                self._draw_again()
                losses.append(self.problem.loss_on(copied(batch)).item())
        return losses

    def _draw_again(self) -> None:
        """The same dropout and noise for every loss: they are compared with one another."""
        seed_randomness(self._seed, self.problem.device, self._generators)

    def differentiated(self, number: int, leaves: Leaves) -> tuple[float, Gradients]:
        """Loss and gradients on the batch of a step, of a model that is set up for it.

        Args:
            number: of the step.
            leaves: the parameters.
        """
        self.gradients += 1
        self._draw_again()
        return _differentiated(self.problem, self.placed[number % len(self.placed)], leaves)

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
    """Steps on the batches in turn, by an optimizer's rule.

    Attributes:
        rate: the learning rate.
        taken: steps so far.
        leaves: the parameters where the walk stands.
        gradients: there, of the batch that comes next.

    Args:
        walks: model, loss and batches.
        rule: of the optimizer.
        rate: the learning rate.
        after: a walk on the first batch alone, where this one begins; None: at the start.
        first_only: whether every step is on the first batch.
    """

    def __init__(
        self,
        walks: Walks,
        rule: UpdateRule,
        rate: float,
        after: Walk | None = None,
        first_only: bool = False,
    ) -> None:
        self._walks, self.rate = walks, rate
        self._decay = 0.0
        if walks.preconditioner is not None:  # it divides, and a decay in the gradient too
            self._decay = 0.0 if rule.decoupled else rule.weight_decay
            rule = replace(rule, second_moment=None, weight_decay=rule.weight_decay - self._decay)
        self._count = 1 if first_only else len(walks.batches)
        self.taken = 0
        if after is None:
            leaves, loss, self.gradients = walks.start
            self._ratio = self._ratio_of(loss)
        else:
            leaves, self.gradients, self._ratio = after.leaves, after.gradients, after._ratio
        self.leaves: Leaves = tuple(each.detach().clone().requires_grad_() for each in leaves)
        self._updates = [Updates(rule) for _ in leaves]

    @property
    def _next(self) -> int:
        """The place of the batch that comes next."""
        return self.taken % self._count

    def here(self) -> Evaluator:
        """The model where the walk stands, on the batch that comes next."""
        return self._walks.evaluator(self._next, self.point)

    @property
    def point(self) -> dict[str, Tensor]:
        """The parameters where the walk stands, by name."""
        leaves = zip(self._walks.layout.names, self.leaves, strict=True)
        return {name: leaf.detach().clone() for name, leaf in leaves}

    def outputs(self) -> Tensor | None:
        """What the model gives on the batch that comes next; None if that cannot be seen."""
        walks = self._walks
        if not walks.problem.has_outputs:
            return None
        with walks.scene(self.leaves), torch.no_grad():
            return walks.problem.output_on(copied(walks.placed[self._next]))

    @property
    def is_broken(self) -> bool:
        """Whether the loss where the walk stands is unstable, by the project's definition."""
        return not self._ratio <= growth_limit(self._walks.problem.loss)

    def has_fallen(self, share: float = FALLEN) -> bool:
        """Whether the loss where the walk stands is at most this share of the same batch's first.

        Args:
            share: of the first loss.
        """
        return self._ratio <= share

    def take(self, steps: int, until: float = -math.inf) -> Walk:
        """Go on as long as the loss does not break.

        Args:
            steps: how many at most.
            until: the share of its first value at which a loss is low enough to stop.

        Returns:
            The walk itself.
        """
        with self._walks.scene(self.leaves):
            for _ in range(steps):
                if self.is_broken or self.has_fallen(until):
                    break
                self._step()
        return self

    def _step(self) -> None:
        """One step, and loss and gradients where it leads."""
        with torch.no_grad():
            moves = zip(self._updates, self.leaves, self._divided(), strict=True)
            for updates, leaf, gradient in moves:
                if gradient is not None:
                    updates.apply(leaf, gradient, self.rate)
        self.taken += 1
        loss, self.gradients = self._walks.differentiated(self._next, self.leaves)
        self._ratio = self._ratio_of(loss)

    def _divided(self) -> Gradients:
        """The gradients, over what the optimizer always divides them by."""
        scale, layout = self._walks.preconditioner, self._walks.layout
        if scale is None:
            return self.gradients
        parts = zip(self.gradients, self.leaves, layout.split(scale.scale), strict=True)
        return tuple(
            None if gradient is None else gradient.add(leaf, alpha=self._decay) / part
            for gradient, leaf, part in parts
        )

    def _ratio_of(self, loss: float) -> float:
        """Over the first loss of the same batch; one that is not positive has no scale."""
        first = self._walks.first_losses[self._next]
        if not math.isfinite(loss):
            return math.nan
        return loss / first if first > 0 else 0.0


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
    with evaluator.scene(leaves, twice=False):
        loss, gradients = _differentiated(evaluator.problem, placed, leaves)
    return loss, evaluator.layout.join(gradients)


def _differentiated(problem: Problem, batch: Batch, leaves: Leaves) -> tuple[float, Gradients]:
    """Loss and gradients of a model that is set up for it."""
    loss = problem.loss_on(copied(batch))  # which a model may overwrite
    return loss.item(), torch.autograd.grad(loss, leaves, allow_unused=True)
