"""Optimizers as recipes: a factory is named before there is a model to bind it to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, SupportsFloat, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer

from normscope.errors import ArgumentTypeError, InputError

__all__ = ["OptimizerFactory", "bound_optimizer", "sgd"]

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], Optimizer]

_FULL = (torch.float32, torch.float64)
_FUSED = {"cpu": _FULL, "cuda": (*_FULL, torch.float16, torch.bfloat16)}


def sgd(
    learning_rate: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> OptimizerFactory:
    """Factory of stochastic gradient descent: torch's own, fused into one pass where it can be.

    Args:
        learning_rate: step size; 0 leaves the parameters where they are.
        momentum: heavy-ball momentum, from 0 up to 1.
        nesterov: whether the momentum is Nesterov's.
        weight_decay: factor of the parameters that is added to the gradient.

    Returns:
        A function from parameters to an optimizer.

    Raises:
        ArgumentTypeError: if a value is not a number.
        InputError: if a value is out of range.

    >>> sgd(0.1, momentum=0.9)(nn.Linear(2, 1).parameters()).defaults["momentum"]
    0.9
    """
    learning_rate = _number("learning_rate", learning_rate)
    momentum = _number("momentum", momentum)
    weight_decay = _number("weight_decay", weight_decay)
    if not 0 <= learning_rate < math.inf:
        raise InputError(f"learning_rate must be finite and not negative, got {learning_rate}.")
    if not 0 <= momentum < 1:
        raise InputError(f"momentum must be from 0 up to 1, got {momentum}.")
    if nesterov and momentum == 0:
        raise InputError("nesterov=True needs a momentum above 0, got 0.")
    if not 0 <= weight_decay < math.inf:
        raise InputError(f"weight_decay must be finite and not negative, got {weight_decay}.")
    return partial(
        _fused_sgd,
        lr=learning_rate,
        momentum=momentum,
        nesterov=bool(nesterov),
        weight_decay=weight_decay,
    )


def _number(name: str, value: object) -> float:
    """A number of any kind as Python's own, which every checkpoint can hold."""
    if not isinstance(value, SupportsFloat) or getattr(value, "ndim", 0) > 0:
        raise ArgumentTypeError(f"{name} must be a number, got {type(value).__name__}.")
    return float(value)


def _fused_sgd(parameters: Iterable[nn.Parameter], **options: Any) -> SGD:
    parameters = list(parameters)
    return SGD(parameters, fused=all(map(_can_be_fused, parameters)) or None, **options)


def _can_be_fused(parameter: Tensor) -> bool:
    # of half-precision parameters the CPU's kernel (torch 2.13) leaves most entries as they were
    return parameter.dtype in _FUSED.get(parameter.device.type, ())


def bound_optimizer(optimizer: OptimizerFactory | Optimizer, model: nn.Module) -> Optimizer:
    """The optimizer a factory makes for a model's trainable parameters, or the one given.

    Args:
        optimizer: a factory ``parameters -> Optimizer``, or an optimizer of the model.
        model: the model to be trained.

    Returns:
        An optimizer over parameters of the model.

    Raises:
        ArgumentTypeError: if it is neither, or needs to evaluate the loss itself.
        InputError: if the model has nothing to train, or the optimizer belongs to another model.
    """
    if not isinstance(optimizer, Optimizer):
        trainable = [p for p in model.parameters() if p.requires_grad]
        if not trainable:
            raise InputError(
                "the model has no parameter with requires_grad=True to train; call "
                "model.requires_grad_(True)."
            )
        optimizer = _made(optimizer, trainable)
    if isinstance(optimizer, LBFGS):
        raise ArgumentTypeError("LBFGS evaluates the loss itself; use a one-gradient optimizer.")
    own = set(map(id, model.parameters()))
    if any(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
        raise InputError(
            "the optimizer holds parameters that are not the model's; make it from "
            "model.parameters(), or pass a factory."
        )
    return optimizer


def _made(factory: OptimizerFactory, trainable: list[nn.Parameter]) -> Optimizer:
    made = factory(trainable) if callable(factory) else factory
    if not isinstance(made, Optimizer):
        raise ArgumentTypeError(
            "the optimizer must be a torch Optimizer or a factory that makes one from parameters, "
            f"such as sgd(0.1), got {type(made).__name__}."
        )
    return made
