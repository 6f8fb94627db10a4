"""Training that never reaches the user's model: copies, and random numbers that come back."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from normscope.errors import InputError, StateError
from normscope.problem.batch import Batch, sample_count
from normscope.problem.isolation import (
    fixed_randomness,
    generators_of_data,
    generators_of_model,
    undisturbed,
)
from normscope.problem.loss import modules_of_loss
from normscope.problem.problem import Problem
from normscope.training.batches import batch_source
from normscope.training.optimizers import OptimizerFactory, bind_optimizer

__all__ = ["Workbench", "checked_optimizer"]


@dataclass(frozen=True)
class Workbench:
    """A problem with its optimizer and batch size, to be tried out on copies.

    Args:
        problem: the user's model, loss and data; none of them is changed.
        optimizer: the user's optimizer of that model, whose state the copies begin with; or a
            factory.
        batch_size: samples per step; None: the batches as the data has them.
        seed: of the order of the data, dropout and noise.
    """

    problem: Problem
    optimizer: OptimizerFactory | Optimizer
    batch_size: int | None
    seed: int

    @property
    def orders_differ(self) -> bool:
        """Whether another order of the data makes other batches: not where each holds them all."""
        return self.batch_size is not None and self.batch_size < sample_count(self.problem.data)

    @contextmanager
    def rehearsal(self, rate: float | None = None) -> Iterator[tuple[Problem, Optimizer]]:
        """A copy of model and optimizer that may be trained; random numbers follow the seed.

        Args:
            rate: learning rate of every group; None: as it is.

        Yields:
            The problem with the copied model, and the copied optimizer.
        """
        model, optimizer = self._copied()
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate
        owned = generators_of_model(model) + generators_of_data(self.problem.data)
        generators = {id(generator): generator for generator in owned}.values()
        loss = self.problem.loss
        with (
            undisturbed(nn.Module(), *modules_of_loss(loss, self.problem.model)),
            fixed_randomness(self.seed, self.problem.device, generators),
        ):
            yield Problem(model, loss, self.problem.data), optimizer

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Put back what a measurement may touch: modules of model and loss, all random numbers."""
        problem = self.problem
        owned = generators_of_model(problem.model) + generators_of_data(problem.data)
        generators = {id(generator): generator for generator in owned}.values()
        others = modules_of_loss(problem.loss, problem.model)
        with (
            undisturbed(problem.model, *others),
            fixed_randomness(self.seed, problem.device, generators),
        ):
            yield

    def batches(self, count: int) -> list[Batch]:
        """The first batches that a training would see, at most so many, none of them twice."""
        problem = self.problem
        if problem.is_one_batch and self.batch_size is None:
            return [problem.placed(problem.data)]
        generators = generators_of_data(problem.data)
        with fixed_randomness(self.seed, problem.device, generators):
            # first: it refuses a batch size that does not fit
            source = batch_source(problem, self.batch_size, self.seed, drop_last=True)
            return [source.draw() for _ in range(min(count, self._batches_held()))]

    def _batches_held(self) -> int:
        if self.problem.is_one_batch:
            assert self.batch_size is not None
            return max(1, sample_count(self.problem.data) // self.batch_size)
        try:
            return len(self.problem.data)
        except TypeError:  # an iterable without a length: as many as asked for, perhaps repeated
            return 2**31

    def _copied(self) -> tuple[nn.Module, Optimizer]:
        """Model and optimizer, copied together so that they still belong together."""
        given = self.optimizer
        try:
            if isinstance(given, Optimizer):
                return _without_gradients(*copy.deepcopy((self.problem.model, given)))
            model = copy.deepcopy(self.problem.model)
        except Exception as error:
            raise StateError(
                f"the model cannot be copied for a trial ({type(error).__name__}: {error}); make "
                "it fit for copy.deepcopy, or ask with verify=False."
            ) from error
        return _without_gradients(model, bind_optimizer(given, model))


def _without_gradients(model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    for parameter in model.parameters():
        parameter.grad = None
    return model, optimizer


def checked_optimizer(optimizer: OptimizerFactory | Optimizer, model: nn.Module) -> Optimizer:
    """The user's optimizer, or what a factory makes for the model, with a rate to begin from.

    Args:
        optimizer: an optimizer of the model's parameters or a factory.
        model: the user's model.

    Returns:
        An optimizer over the model's own parameters, to be read and never stepped.

    Raises:
        InputError: if it leaves a trainable parameter out.
    """
    made = bind_optimizer(optimizer, model)
    held = {id(p) for group in made.param_groups for p in group["params"]}
    left_out = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if left_out:
        raise InputError(
            f"the optimizer leaves out {left_out[0]!r} and {len(left_out) - 1} more trainable "
            "parameters; set requires_grad=False on those that are not trained."
        )
    return made
