"""Optimizers: the SGD factory, binding to a model, the step of a training, a step on copies."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, SupportsFloat, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer

from normscope.errors import ArgumentTypeError, InputError, StateError
from normscope.problem.isolation import RandomGenerators

OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], Optimizer]

_FULL = (torch.float32, torch.float64)
_FUSED = {"cpu": _FULL, "cuda": (*_FULL, torch.float16, torch.bfloat16)}
# Attributes that hooks, schedulers and gradient scalers set on an optimizer.
_STEP_WRAPPERS = ("step", "grad_scale", "found_inf")


def sgd(
    learning_rate: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> OptimizerFactory:
    """Return a factory of ``torch.optim.SGD``, fused where torch supports it.

    Args:
        learning_rate: step size; 0 leaves the parameters unchanged.
        momentum: heavy-ball momentum, from 0 up to 1.
        nesterov: whether to use Nesterov momentum.
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
    """Convert any scalar to a Python float, which every checkpoint can hold."""
    if not isinstance(value, SupportsFloat) or getattr(value, "ndim", 0) > 0:
        raise ArgumentTypeError(f"{name} must be a number, got {type(value).__name__}.")
    return float(value)


def _fused_sgd(parameters: Iterable[nn.Parameter], **options: Any) -> SGD:
    parameters = list(parameters)
    return SGD(parameters, fused=all(map(_can_be_fused, parameters)) or None, **options)


def _can_be_fused(parameter: Tensor) -> bool:
    # torch 2.13's CPU kernel leaves most entries of half-precision parameters unchanged.
    plain = type(parameter) in (Tensor, nn.Parameter)  # a DTensor has no fused kernel
    return plain and parameter.dtype in _FUSED.get(parameter.device.type, ())


def bind_optimizer(optimizer: OptimizerFactory | Optimizer, model: nn.Module) -> Optimizer:
    """Return the given optimizer, or the one a factory makes for the trainable parameters.

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
        optimizer = optimizer(trainable) if callable(optimizer) else optimizer
    if not isinstance(optimizer, Optimizer):
        raise ArgumentTypeError(
            "the optimizer must be a torch Optimizer or a factory that makes one from parameters, "
            "such as functools.partial(torch.optim.AdamW, lr=1e-3), got "
            f"{repr(optimizer) if isinstance(optimizer, str) else type(optimizer).__name__}."
        )
    if isinstance(optimizer, LBFGS):
        raise ArgumentTypeError("LBFGS evaluates the loss itself; use a one-gradient optimizer.")
    own = set(map(id, model.parameters()))
    if any(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
        raise InputError(
            "the optimizer holds parameters that are not the model's; make it from "
            "model.parameters(), or pass a factory."
        )
    return optimizer


def needs_closure(optimizer: Optimizer) -> bool:
    """Return whether a step of the optimizer evaluates the loss again, on the same batch.

    Args:
        optimizer: any torch optimizer.

    Returns:
        The optimizer's attribute ``needs_closure``, if it has one. Otherwise True if ``step`` has a
        closure without a default, or if the optimizer takes its step in two parts, ``first_step``
        and ``second_step``, as implementations of SAM do.
    """
    declared = getattr(optimizer, "needs_closure", None)
    if declared is not None:
        return bool(declared)
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        return True
    return all(hasattr(optimizer, name) for name in ("first_step", "second_step"))


def take_step(optimizer: Optimizer, closure: Callable[[], Tensor] | None = None) -> None:
    """Step an optimizer, unfused at steps that torch's fused SGD cannot take.

    Fused SGD takes neither sparse gradients nor, with momentum, a parameter whose first gradient
    comes after those of others. An autocast around the training forgets the weights it has cast.

    Args:
        optimizer: any optimizer whose parameters hold their gradients.
        closure: evaluates loss and gradients again, for optimizers that need it.
    """
    groups = optimizer.param_groups
    fused = [group for group in groups if type(optimizer) is SGD and group["fused"]]
    if closure is not None:
        optimizer.step(closure)  # type: ignore[arg-type]  # torch's closures return floats
    elif not any(_fused_step_fails(optimizer, group) for group in fused):
        optimizer.step()
    else:
        _step_unfused(optimizer, fused)
    torch.clear_autocast_cache()


def _step_unfused(optimizer: Optimizer, fused: list[dict[str, Any]]) -> None:
    for group in fused:
        group["fused"] = False
    try:
        optimizer.step()
    finally:
        for group in fused:
            group["fused"] = True


def _fused_step_fails(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
    if any(parameter.grad.is_sparse for parameter in parameters):
        return True
    if group["momentum"] == 0:
        return False
    state = optimizer.state
    buffers = [state[p].get("momentum_buffer") if p in state else None for p in parameters]
    missing = sum(buffer is None for buffer in buffers)
    return 0 < missing < len(buffers)


def step_on_copies(
    optimizer: Optimizer,
    gradients: Mapping[Tensor, Tensor],
    learning_rate: float | None = None,
    seed: int = 0,
    needed_by: str = "that needs the update",
) -> tuple[dict[Tensor, nn.Parameter], Optimizer]:
    """Step a copy of an optimizer on copies of its parameters.

    The copy has the optimizer's state (momentum, moments). Hooks on the step do not run.

    Args:
        optimizer: any torch optimizer; it is not changed.
        gradients: by parameter; parameters without one are not updated.
        learning_rate: in place of the rate of every group.
        seed: of optimizers that draw random numbers.
        needed_by: names of the probes that need the update, for the error.

    Returns:
        The updated copies, by original parameter, and the optimizer's copy, whose state is that
        after the step.

    Raises:
        StateError: if the optimizer cannot be copied, needs a closure or refuses dense gradients.
    """
    with torch.inference_mode(False), torch.no_grad():
        copies = _copy_parameters(optimizer, gradients)
        clone = copy_optimizer(optimizer, copies, f"leave out the probe {needed_by}")
        for group in clone.param_groups if learning_rate is not None else ():
            group["lr"] = learning_rate
    device = next(iter(copies)).device
    step = type(clone).step
    if getattr(step, "hooked", False):  # torch wraps every step to run hooks
        step = getattr(step, "__wrapped__", step)
    try:
        fixed = RandomGenerators(device).preserved(seed)
        with torch.inference_mode(False), torch.enable_grad(), fixed:
            step(clone)
    except Exception as error:
        raise StateError(
            f"the update of {type(optimizer).__name__} cannot be computed on a copy, with dense "
            f"gradients and without a closure ({type(error).__name__}: {error}); leave out the "
            f"probe {needed_by}, or give learning_rate= and no optimizer."
        ) from error
    return copies, clone


def _copy_parameters(
    optimizer: Optimizer, gradients: Mapping[Tensor, Tensor]
) -> dict[Tensor, nn.Parameter]:
    copies: dict[Tensor, nn.Parameter] = {}
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        twin = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        if parameter in gradients:
            # A copy, because some optimizers write to the gradient.
            twin.grad = gradients[parameter].clone(memory_format=torch.preserve_format)
        copies[parameter] = twin
    return copies


def copy_optimizer(
    optimizer: Optimizer, parameters: Mapping[Tensor, nn.Parameter], remedy: str
) -> Optimizer:
    """Return a copy of an optimizer with its state, over other parameters or the same ones.

    Args:
        optimizer: any torch optimizer; it is not changed.
        parameters: the copy's parameters by those of the optimizer.
        remedy: what to do if it cannot be copied, for the error.

    Returns:
        The copy, without the hooks on the step.

    Raises:
        StateError: if an attribute cannot be copied.
    """
    clone = type(optimizer).__new__(type(optimizer))
    memo: dict[int, Any] = {id(parameter): twin for parameter, twin in parameters.items()}
    memo[id(optimizer)] = clone
    for name, value in vars(optimizer).items():
        if name in _STEP_WRAPPERS:
            continue
        try:
            is_hooks = name.startswith("_optimizer_")
            clone.__dict__[name] = type(value)() if is_hooks else copy.deepcopy(value, memo)
        except Exception as error:
            raise StateError(
                f"the optimizer cannot be copied to compute its update ({name!r}: "
                f"{type(error).__name__}: {error}); {remedy}."
            ) from error
    return clone
