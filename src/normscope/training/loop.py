"""The training loop: draw a batch, compute the gradient, yield the step, update."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.errors import InputError, StateError
from normscope.interrupts import Undo
from normscope.problem.batch import Batch
from normscope.problem.global_state import uncached_autocast
from normscope.problem.isolation import RandomGenerators
from normscope.problem.problem import Problem
from normscope.training.batches import batch_source
from normscope.training.common_rate import CommonRate
from normscope.training.optimizers import (
    OptimizerFactory,
    bind_optimizer,
    needs_closure,
    take_step,
)
from normscope.validation import check_integer


class Outcome(Enum):
    """How a training ended; the value is general advice."""

    FINISHED = "All steps were taken."
    DIVERGED = (
        "The loss became non-finite or passed the stated multiple of its first value: lower the "
        "learning rate or add normalization; divergence_factor moves the limit."
    )
    STOPPED = "The callback stopped the run: call fit again with the checkpoint to continue."


@dataclass(frozen=True, slots=True)
class Step:
    """One training step, between its gradient and its update.

    Args:
        index: number of updates taken before.
        loss: loss on the batch, before the update; with accumulation the mean over its batches.
        batch: the batch of this step, (inputs, targets); with accumulation the last one.
        model: the model; the gradient of the loss is in its parameters' ``.grad``.
        learning_rate: of the coming update (of the first parameter group).
        optimizer: takes the update when the loop continues; a learning rate set here takes effect.
        diverged: whether this loss ends the run; then its update is not taken.
    """

    index: int
    loss: float
    batch: Batch
    model: nn.Module
    learning_rate: float
    optimizer: Optimizer
    diverged: bool


def train(
    problem: Problem,
    optimizer: OptimizerFactory | Optimizer,
    steps: int,
    batch_size: int | None = None,
    seed: int = 0,
    *,
    drop_last: bool = True,
    divergence_factor: float | None = 1e3,
) -> Generator[Step, None, None]:
    """Train, yielding one `Step` at a time.

    Each step is yielded after its gradient and before its update. The update happens when the
    generator continues, so after ``break`` the last step was not taken. The model is in train
    mode meanwhile; afterwards its modules' flags are restored. Modules in eval mode of a model in
    train mode, such as batch norm layers frozen for fine-tuning, stay in eval mode.

    Args:
        problem: model, loss and data.
        optimizer: a factory such as ``sgd(0.1)``, or an optimizer of the model's parameters.
        steps: number of updates.
        batch_size: samples per step, drawn without replacement from data that is one batch; None:
            all of it at every step, or the batches of a list or DataLoader one by one.
        seed: of the order of the samples; the same seed gives the same batches. A shuffled
            DataLoader ignores it: it draws from torch's global generator or its own.
        drop_last: drop the samples of an epoch that do not fill a batch: statistics of a smaller
            batch belong to another problem. Every epoch drops other samples.
        divergence_factor: a loss above this multiple of the first one ends the run, as a
            non-finite loss always does; None: only the latter. The default is far above the
            spikes from which trainings recover.

    Returns:
        The generator of steps. A run that diverges ends with a step whose ``diverged`` is True
        and that has no gradient.

    Raises:
        ArgumentTypeError: if a number is not an integer where it must be.
        InputError: if an argument does not fit the problem.

    Examples:
        >>> from normscope.training import sgd
        >>> line = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(line.weight)
        >>> problem = Problem(line, "squared_error", (torch.ones(4, 1), torch.ones(4, 1)))
        >>> [step.loss for step in train(problem, sgd(0.5), steps=3)]
        [0.5, 0.125, 0.03125]
    """
    loop = Loop(problem, optimizer, batch_size, seed, drop_last, divergence_factor)
    return loop.run(steps)


class Loop:
    """The state of a training that changes from step to step; arguments as in `train`.

    Args:
        own_gradients_only: whether a step leaves the ``.grad`` of all tensors alone that are not
            parameters of the model, such as those of a second model that the loss calls.
        keeps_flags: leave every module's ``training`` flag as it is, also in eval mode.
        updates_last: whether the last step of a run has a gradient and an update, which its loss
            does not need.
    """

    def __init__(
        self,
        problem: Problem,
        optimizer: OptimizerFactory | Optimizer,
        batch_size: int | None,
        seed: int,
        drop_last: bool = True,
        divergence_factor: float | None = 1e3,
        own_gradients_only: bool = False,
        keeps_flags: bool = False,
        updates_last: bool = True,
    ) -> None:
        if divergence_factor is not None and not divergence_factor > 1:
            raise InputError(f"divergence_factor must be above 1 or None, got {divergence_factor}.")
        self.problem = problem
        self.optimizer = bind_optimizer(optimizer, problem.model)
        self.batches = batch_source(problem, batch_size, seed, drop_last)
        self.taken = 0
        self.losses: list[float] = []
        self.stop_requested = False
        self.outcome = Outcome.FINISHED
        self._divergence_factor, self._keeps_flags = divergence_factor, keeps_flags
        self._parameters = list(problem.model.parameters())
        self._device = problem.device  # once: it searches the model's tensors
        self._own_gradients_only, self._updates_last = own_gradients_only, updates_last
        made = self.optimizer
        self._accumulate = made.accumulate if isinstance(made, CommonRate) else 1
        self._closure: Callable[[], Tensor] | None = None
        # only optimizers with a closure run the model twice on a batch
        needed = needs_closure(self.optimizer)
        self._generators = RandomGenerators(problem.model) if needed else None

    def run(
        self, steps: int, after_update: Callable[[], None] = lambda: None
    ) -> Generator[Step, None, None]:
        """Train until so many updates were taken in all, then set ``outcome``.

        Args:
            steps: number of updates, including those taken before.
            after_update: called between two steps, when the state is consistent.

        Returns:
            The generator of steps.

        Raises:
            InputError: if ``steps`` is negative.
        """
        check_steps(steps)
        return self._run(steps, after_update)

    def _run(self, steps: int, after_update: Callable[[], None]) -> Generator[Step, None, None]:
        with nullcontext() if self._keeps_flags else training_mode(self.problem.model):
            while self.taken < steps and not self.stop_requested:
                is_last = not self._updates_last and self.taken == steps - 1
                step = self._gradient_step(loss_only=is_last)
                yield step
                if step.diverged:
                    self.outcome = Outcome.DIVERGED
                    return
                if is_last:
                    break
                take_step(self.optimizer, self._closure)
                self.taken += 1
                after_update()
        self.outcome = Outcome.STOPPED if self.stop_requested else Outcome.FINISHED

    def _gradient_step(self, loss_only: bool = False) -> Step:
        """Draw the batches of a step and leave the gradient of their loss in the parameters."""
        batches = [self.batches.draw() for _ in range(self._accumulate)]
        if self._generators is not None:
            self._closure = self._repeat(batches, self._generators)
        loss = self._accumulate_gradient(batches, loss_only)
        self.losses.append(loss)
        diverged = has_diverged(loss, self.losses[0], self._divergence_factor)
        if diverged and len(batches) > 1:
            self._clear_gradients()
        return Step(
            index=self.taken,
            loss=loss,
            batch=batches[-1],
            model=self.problem.model,
            learning_rate=float(self.optimizer.param_groups[0]["lr"]),
            optimizer=self.optimizer,
            diverged=diverged,
        )

    def _accumulate_gradient(self, batches: Sequence[Batch], loss_only: bool) -> float:
        """Return the mean loss of batches and leave its gradient, unless the loss diverged."""
        total, count = 0.0, len(batches)
        for number, batch in enumerate(batches):
            loss = self._loss(batch)
            if number == 0:
                self._clear_gradients()
            total += loss.item() / count
            factor = self._divergence_factor if number == count - 1 else None
            if has_diverged(total, self.losses[0] if self.losses else total, factor):
                break
            if not loss_only:
                self._backward(loss, count)
        return total

    def _loss(self, batch: Batch) -> Tensor:
        with torch.enable_grad(), uncached_autocast(self._device):
            loss = self.problem.loss_on(batch)
        if not loss.requires_grad:
            raise StateError(
                "the loss does not depend on any parameter with requires_grad=True; look for "
                "frozen parameters, and for detach or no_grad in the model and the loss."
            )
        return loss

    def _clear_gradients(self) -> None:
        """Free the last gradients: after a forward pass, so that the next ones reuse the memory."""
        for parameter in self._parameters:
            parameter.grad = None

    def _repeat(
        self, batches: Sequence[Batch], generators: RandomGenerators
    ) -> Callable[[], Tensor]:
        """Return a closure for the optimizer: loss and gradient again, with the same dropout."""
        states = generators.torch_states()

        def closure() -> Tensor:
            generators.set_torch_states(states)
            self._clear_gradients()
            losses = []
            for batch in batches:
                losses.append(self._loss(batch))
                self._backward(losses[-1], len(batches))
            return torch.stack([loss.detach() for loss in losses]).mean()

        return closure

    def _backward(self, loss: Tensor, count: int) -> None:
        """Add the gradient of one of ``count`` losses, whose mean is the loss of the step."""
        inputs = None
        if self._own_gradients_only:
            inputs = [parameter for parameter in self._parameters if parameter.requires_grad]
        mean = loss if count == 1 else loss / count
        mean.backward(inputs=inputs)  # type: ignore[no-untyped-call]  # untyped in torch


def has_diverged(loss: float, first: float, factor: float | None) -> bool:
    """Return whether one loss of a training run is non-finite or too large.

    Args:
        loss: of a step.
        first: of the first step; if it is not positive, only non-finite losses count.
        factor: multiple of the first loss above which a loss counts; None: non-finite ones only.

    >>> has_diverged(1.6, 1.0, 1.5), has_diverged(1.5, 1.0, 1.5), has_diverged(1.6, 1.0, None)
    (True, False, False)
    >>> has_diverged(math.nan, 0.0, 1.5)
    True
    """
    return not math.isfinite(loss) or (factor is not None and loss > factor * first > 0)


def check_steps(steps: int) -> None:
    """Raise unless ``steps`` is an integer of at least 0.

    Args:
        steps: the number of steps.

    Raises:
        InputError: if it is negative.
    """
    check_integer("steps", steps)
    if steps < 0:
        raise InputError(f"steps must not be negative, got {steps}.")


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in train mode, and restore every module's flag on exit.

    If it is in train mode already, its modules in eval mode stay so: they were put there on
    purpose. The model's own ``train()`` is still called: it may keep more of them in eval mode.
    """
    flags = [(module, module.training) for module in model.modules()]
    held = [module for module, flag in flags if model.training and not flag]

    def set_back() -> None:
        for module, flag in flags:
            module.training = flag

    restore = Undo(set_back)
    try:
        model.train()
        for module in held:
            module.training = False
        yield
    finally:
        restore()
