"""What a scope looks at: the model itself, without its wrappers, its loss and its optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from normscope.curvature.problem import Problem, WholeLoss
from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.losses import Loss
from normscope.training.optimizers import bound_optimizer

__all__ = ["Subject", "is_measuring_process", "unwrapped"]


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile, DataParallel and DistributedDataParallel.

    Raises:
        ArgumentTypeError: if it is not a module.

    >>> line = nn.Linear(1, 1)
    >>> unwrapped(nn.DataParallel(line)) is line
    True
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"the model must be a torch.nn.Module, got {type(model).__name__}.")
    while True:
        compiled = model._modules.get("_orig_mod")
        parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = model.module if parallel else compiled
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_measuring_process() -> bool:
    """Whether this process measures: the only one, or the one of rank 0."""
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not ready or torch.distributed.get_rank() == 0


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with its loss and its optimizer.

    Args:
        model: without wrappers.
        loss: as `Problem` takes it.
        optimizer: of the model's parameters, or None.
        learning_rate: for all parameters, in place of the optimizer's.
        seed: of the probes' random choices.
    """

    model: nn.Module
    loss: Loss | WholeLoss | str
    optimizer: Optimizer | None
    learning_rate: float | None
    seed: int

    def __post_init__(self) -> None:
        if self.optimizer is not None:
            if not isinstance(self.optimizer, Optimizer):
                raise ArgumentTypeError(
                    "the optimizer must be the torch Optimizer that trains the model, got "
                    f"{type(self.optimizer).__name__}."
                )
            bound_optimizer(self.optimizer, self.model)
        rate = self.learning_rate
        if rate is not None and not 0 <= rate < float("inf"):
            raise InputError(f"learning_rate must be finite and not negative, got {rate}.")

    @property
    def has_learning_rate(self) -> bool:
        """Whether there is a learning rate, the optimizer's or a given one."""
        return self.optimizer is not None or self.learning_rate is not None

    def problem(self, inputs: Any, targets: Any) -> Problem:
        """This step's batch with the model and the loss, checked.

        Args:
            inputs: the model's inputs; with a `whole_loss` the whole batch.
            targets: what the loss compares with; with a `whole_loss` None.

        Returns:
            The problem.

        Raises:
            ArgumentTypeError: if the batch does not fit the kind of loss.
            ShapeError: if inputs and targets differ in length.
        """
        if targets is None:
            if not isinstance(self.loss, WholeLoss):
                raise ArgumentTypeError(
                    "step takes inputs and targets, step(x, y); a batch of another form needs "
                    "loss=whole_loss(...)."
                )
            # a list would be several batches
            batch = tuple(inputs) if isinstance(inputs, list) else inputs
            return Problem(self.model, self.loss, batch)
        try:
            return Problem(self.model, self.loss, (inputs, targets))
        except ShapeError as error:
            raise ShapeError(f"the batch given to step does not fit together: {error}") from error

    def rates(self) -> dict[str, float]:
        """The learning rate of each trained parameter, by name; negative where one maximizes."""
        names = {id(p): name for name, p in self._trainable().items()}
        if self.optimizer is None:
            rate = float("nan") if self.learning_rate is None else self.learning_rate
            return dict.fromkeys(names.values(), rate)
        found: dict[str, float] = {}
        for group in self.optimizer.param_groups:
            rate = float(group["lr"]) if self.learning_rate is None else self.learning_rate
            signed = -rate if group.get("maximize", False) else rate
            found |= {names[id(p)]: signed for p in group["params"] if id(p) in names}
        return {name: found[name] for name in names.values() if name in found}

    def trained(self) -> list[str]:
        """Names of the parameters that are trained: not frozen, and known to the optimizer."""
        return list(self.rates())

    def _trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}
