"""Short trial runs: a few training steps from a start, without changing the model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from normscope.learning_rate.stability import growth_limit
from normscope.learning_rate.thresholds import (
    DECREASED,
    FIRST_LOSSES,
    PLATEAU_CAUTION,
    PLATEAU_LOGITS,
    PLATEAU_MOMENTUM,
    PLATEAU_OUTPUTS,
    PLATEAU_STEPS,
    PLATEAU_TRIES,
    TRIAL_FAR,
)
from normscope.learning_rate.update_rule import Preconditioner, RuleSteps, UpdateRule
from normscope.problem.batch import Batch, copy_batch, move_batch
from normscope.problem.evaluate import Evaluator
from normscope.problem.hooks import apply_gradient_hooks
from normscope.problem.isolation import RandomGenerators
from normscope.problem.loss import WholeLoss
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem
from normscope.problem.recognition import is_cross_entropy, known_loss

Leaves: TypeAlias = tuple[Tensor, ...]  # the parameters, in the layout's order
Gradients: TypeAlias = tuple[Tensor | None, ...]  # None where the loss does not depend on it


class TrialStart:
    """The start that several trial runs share: model, loss, batches and parameters.

    Attributes:
        gradients: number of gradients taken from here.

    Args:
        problem: model, loss and data; not changed.
        batches: one for each step, in turn.
        preconditioner: constant divisor of the steps; None: the optimizer's rule computes it.
        seed: of dropout and noise.
        point: parameters that differ from the current weights.
        mode: of the steps: "train", "frozen", "eval" or "as_is".
    """

    def __init__(
        self,
        problem: Problem,
        batches: Sequence[Batch],
        preconditioner: Preconditioner | None = None,
        seed: int = 0,
        point: Mapping[str, Tensor] | None = None,
        mode: str = "train",
    ) -> None:
        self.problem, self.batches = problem, batches
        self.preconditioner, self._seed, self._mode = preconditioner, seed, mode
        self.layout = parameter_layout(problem.model)
        device, dtype = problem.device, problem.dtype  # once: they search the model's tensors
        self.placed = [move_batch(batch, device, dtype) for batch in batches]
        first = self._problem(0)
        self._evaluator = Evaluator(first, self.layout, mode, seed).on(first, point)
        self._generators = RandomGenerators(problem.model)
        self._is_prepared = False
        self.gradients = 0

    def moved_to(self, number: int, point: Mapping[str, Tensor]) -> TrialStart:
        """Return a start at another point, with the batches in turn from step ``number`` on."""
        first = number % len(self.batches)
        batches = [*self.batches[first:], *self.batches[:first]]
        return TrialStart(self.problem, batches, self.preconditioner, self._seed, point, self._mode)

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Isolate the model once for all trial runs inside.

        Buffers are reset for every run; plain attributes that a forward pass changes are not.
        """
        with self.context(self._evaluator.leaves()):
            self._is_prepared = True
            try:
                yield
            finally:
                self._is_prepared = False

    def context(self, leaves: Leaves) -> AbstractContextManager[None]:
        """Isolate the model, with these parameters, for first derivatives."""
        if not self._is_prepared:
            return self._evaluator.isolated(leaves, twice=False)
        self._evaluator.reset(leaves)  # no run sees the buffers that another one changed
        return nullcontext()

    @cached_property
    def initial(self) -> tuple[Leaves, float, Gradients]:
        """Parameters at the start, with loss and gradients of the first batch."""
        leaves = self._evaluator.leaves()
        with self.context(leaves):
            return leaves, *self.loss_and_gradients(0, leaves)

    @cached_property
    def first_losses(self) -> list[float]:
        """The losses of the first eight batches at the start, by one forward pass each."""
        return self.losses_on(self.placed[:FIRST_LOSSES])

    def losses_on(self, batches: Sequence[Batch]) -> list[float]:
        """Return the loss of other batches at the start, by one forward pass each.

        Args:
            batches: as `Problem.prepare` returns them.
        """
        losses = []
        with self.context(self._evaluator.leaves()), torch.no_grad():
            for batch in batches:
                self._reseed()
                losses.append(self.problem.loss_on(copy_batch(batch)).item())
        return losses

    def _reseed(self) -> None:
        """Use the same dropout and noise for every loss, so that losses can be compared."""
        self._generators.seed(self._seed)

    def loss_and_gradients(self, number: int, leaves: Leaves) -> tuple[float, Gradients]:
        """Return loss and gradients on the batch of a step; call it inside `context`."""
        self.gradients += 1
        self._reseed()
        batch = self.placed[number % len(self.placed)]
        return _loss_and_gradients(self._evaluator, batch, leaves)

    def evaluator(self, number: int, point: Mapping[str, Tensor] | None = None) -> Evaluator:
        """Return an evaluator on the batch of a step, at ``point`` (None: the start)."""
        return self._evaluator.on(self._problem(number % len(self.batches)), point)

    def _problem(self, number: int) -> Problem:
        """Return model and loss with one of the batches."""
        return Problem(self.problem.model, self.problem.loss, [self.batches[number]])


class TrialRun:
    """A run of a few steps on the batches in turn, by an optimizer's rule.

    Attributes:
        rate: the learning rate.
        taken: steps so far.
        leaves: the current parameters.
        loss: of the next batch, at the current parameters.
        gradients: of the next batch, at the current parameters.

    Args:
        start: model, loss and batches.
        rule: of the optimizer.
        rate: the learning rate.
        after: a run on the first batch alone, whose end is the start; None: the start itself.
        first_only: whether every step is on the first batch.
    """

    def __init__(
        self,
        start: TrialStart,
        rule: UpdateRule,
        rate: float,
        after: TrialRun | None = None,
        first_only: bool = False,
    ) -> None:
        self._start, self.rate = start, rate
        self._decay = 0.0
        if start.preconditioner is not None:  # it divides weight decay in the gradient, too
            self._decay = 0.0 if rule.decoupled else rule.weight_decay
            rule = replace(rule, second_moment=None, weight_decay=rule.weight_decay - self._decay)
        self._firsts = start.first_losses  # before the run: they need the parameters of the start
        self._count = 1 if first_only else len(start.batches)
        self.taken = 0
        if after is None:
            leaves, self.loss, self.gradients = start.initial
        else:
            leaves, self.loss, self.gradients = after.leaves, after.loss, after.gradients
        self.leaves: Leaves = tuple(each.detach().clone().requires_grad_() for each in leaves)
        self._steps = [RuleSteps(rule) for _ in leaves]

    @property
    def _next(self) -> int:
        """Index of the next batch."""
        return self.taken % self._count

    def evaluator(self) -> Evaluator:
        """Return an evaluator at the current parameters, on the next batch."""
        return self._start.evaluator(self._next, self.point)

    @property
    def point(self) -> dict[str, Tensor]:
        """The current parameters by name."""
        leaves = zip(self._start.layout.names, self.leaves, strict=True)
        return {name: leaf.detach().clone() for name, leaf in leaves}

    def outputs(self) -> Tensor | None:
        """Return the model's outputs on the next batch; None unless they are a tensor of rows."""
        start = self._start
        if isinstance(start.problem.loss, WholeLoss):
            return None
        with start.context(self.leaves), torch.no_grad():
            output = start.problem.output_on(copy_batch(start.placed[self._next]))
        return output if isinstance(output, Tensor) and output.dim() > 0 else None

    @property
    def is_unstable(self) -> bool:
        """Whether the current loss is unstable.

        As in `normscope.learning_rate.is_unstable`, except that a loss is compared with the mean of
        the first ones. Training compares it with that of the first step, which is any of them.
        """
        limit = growth_limit(self._start.problem.loss)
        return not _divide(self.loss, statistics.fmean(self._firsts)) <= limit

    def has_decreased(self, share: float = DECREASED) -> bool:
        """Return whether the loss is at most this share of the first one on the same batch."""
        firsts, number = self._firsts, self._next
        first = firsts[number] if number < len(firsts) else statistics.fmean(firsts)
        return _divide(self.loss, first) <= share

    def take(self, steps: int, until: float = -math.inf) -> TrialRun:
        """Take steps as long as the loss is stable.

        Args:
            steps: largest number.
            until: stop once the loss is at most this share of its first value.

        Returns:
            The run itself.
        """
        with self._start.context(self.leaves):
            for _ in range(steps):
                if self.is_unstable or self.has_decreased(until):
                    break
                self._step()
        return self

    def _step(self) -> None:
        """Take one step; then compute loss and gradients on the next batch."""
        with torch.no_grad():
            moves = zip(self._steps, self.leaves, self._divided_gradients(), strict=True)
            for steps, leaf, gradient in moves:
                if gradient is not None:
                    steps.apply(leaf, gradient, self.rate)
        torch.clear_autocast_cache()  # an autocast around this keeps casts of the leaves
        self.taken += 1
        self.loss, self.gradients = self._start.loss_and_gradients(self._next, self.leaves)

    def _divided_gradients(self) -> Gradients:
        """Return the gradients, divided by the constant preconditioner if there is one."""
        scale, layout = self._start.preconditioner, self._start.layout
        if scale is None:
            return self.gradients
        parts = zip(self.gradients, self.leaves, layout.split(scale.scale), strict=True)
        return tuple(
            None if gradient is None else gradient.add(leaf, alpha=self._decay) / part
            for gradient, leaf, part in parts
        )


def _divide(loss: float, first: float) -> float:
    """Divide a loss by a first one; 0 if that is not positive, NaN if the loss is not finite."""
    if not math.isfinite(loss):
        return math.nan
    return loss / first if first > 0 else 0.0


def gradient_on(evaluator: Evaluator, batch: Batch) -> Tensor:
    """Return the gradient on one batch as a flat vector in the layout's order.

    Args:
        evaluator: model and loss at a point; not changed.
        batch: of the problem's data.
    """
    placed = evaluator.problem.prepare(batch)
    leaves = evaluator.leaves()
    with evaluator.isolated(leaves, twice=False):
        _, gradients = _loss_and_gradients(evaluator, placed, leaves)
    return evaluator.layout.join(gradients)


def _loss_and_gradients(
    evaluator: Evaluator, batch: Batch, leaves: Leaves
) -> tuple[float, Gradients]:
    loss = evaluator.problem.loss_on(copy_batch(batch))  # a model may overwrite its input
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    own = list(evaluator.parameters.values())
    return loss.item(), apply_gradient_hooks(own, gradients)


def leave_plateau(
    start: TrialStart,
    top_eigenvalue: float,
    caution: float = PLATEAU_CAUTION,
    decreased: float = DECREASED,
    first_only: bool = False,
) -> TrialRun | None:
    """Run until the loss has begun to decrease.

    A deep network with small weights gives nearly the same output for every sample. Its loss stays
    on a plateau for tens of steps, flat in all directions but those of the last biases, until the
    weights below have grown; then the curvature rises at once. Momentum 0.9 shortens this: while
    the gradient keeps its direction, one step is worth ten of gradient descent.

    Args:
        start: model, loss and batches.
        top_eigenvalue: at the start, positive, which bounds the learning rate.
        caution: share of that bound to use: the curvature beyond the plateau is larger.
        decreased: share of its first value at which a loss counts as decreased.
        first_only: whether to use the first batch alone.

    Returns:
        The run that ended where the loss has decreased; None if it did not within 32 steps. A run
        that becomes unstable is repeated at a quarter of its rate, twice at most.
    """
    rule = UpdateRule("SGD", momentum=PLATEAU_MOMENTUM)
    rate = caution * rule.largest_stable_rate(top_eigenvalue)
    for attempt in range(PLATEAU_TRIES):
        run = TrialRun(start, rule, rate / TRIAL_FAR**attempt, first_only=first_only)
        run.take(PLATEAU_STEPS, until=decreased)
        if run.has_decreased(decreased):
            return run
        if not run.is_unstable:
            return None
    return None


def may_be_on_plateau(problem: Problem, outputs: Tensor, targets: Any) -> bool:
    """Return whether a network may start on a plateau: its outputs hardly differ.

    Args:
        problem: for its loss.
        outputs: of some samples, up to a constant.
        targets: of the same samples.

    Returns:
        False if the outputs' standard deviation over samples exceeds 0.15 for the logits of a
        cross-entropy, or 3 % of the targets' for a squared error (networks on a plateau have at
        most 0.5 %; logits that small also precede a fast rise of the curvature). True for other
        losses, and for targets that torch would broadcast.
    """
    if is_cross_entropy(problem.loss):
        alike = PLATEAU_LOGITS
        outputs = outputs.movedim(1, -1) if outputs.dim() > 2 else outputs  # classes last
    elif known_loss(problem.loss, outputs, targets) is not None:  # squared error
        alike = PLATEAU_OUTPUTS * _deviation(_as_vectors(targets, outputs))
    else:
        return True
    return not _deviation(outputs) > alike


def _as_vectors(targets: Tensor, outputs: Tensor) -> Tensor:
    """Return targets in the shape of the outputs; labels as one-hot vectors."""
    if targets.shape == outputs.shape:
        return targets
    return functional.one_hot(targets.long(), outputs.shape[-1])


def _deviation(values: Tensor) -> float:
    """Return the standard deviation over samples and positions, root mean square over entries."""
    vectors = values.to(torch.float64)
    vectors = vectors.unsqueeze(1) if vectors.dim() == 1 else vectors.flatten(0, -2)
    return math.sqrt(torch.var(vectors, dim=0, correction=0).mean().item())
