"""The update that an optimizer would take, worked out on copies."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normscope.errors import StateError
from normscope.problem.isolation import fixed_randomness

if TYPE_CHECKING:
    from normscope.probes.moment import Moment

__all__ = ["refuse_without_update", "updated_parameters"]


def updated_parameters(moment: Moment) -> dict[str, Tensor]:
    """The trained parameters after the optimizer's update by this step's gradient.

    Any torch optimizer: it is copied with its state, momentum and moments included, onto copies of
    the parameters, and takes one step there. Hooks on the optimizer's step do not run. Without an
    optimizer the update is a step of plain gradient descent.

    Args:
        moment: the step.

    Returns:
        The new values by name.
    """
    optimizer = moment.subject.optimizer
    if optimizer is None:
        rates = moment.rates
        return {
            name: torch.sub(moment.parameters[name], gradient, alpha=rates[name])
            for name, gradient in moment.gradient.items()
        }
    named = dict(moment.subject.model.named_parameters())
    gradients = {id(named[name]): tensor for name, tensor in moment.gradient.items()}
    rate = moment.subject.learning_rate
    copies = _stepped(optimizer, gradients, rate, moment.passes.problem.device, moment.seed)
    return {name: copies[id(named[name])].detach() for name in moment.gradient}


def refuse_without_update(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose update cannot be worked out on copies, by trying it.

    Such as one that needs a closure, refuses dense gradients, or cannot be copied.

    Args:
        optimizer: it is read, never stepped.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = {id(p): torch.zeros_like(p) for p in parameters if p.requires_grad}
    _stepped(optimizer, gradients, None, parameters[0].device, seed=0)


def _stepped(
    optimizer: Optimizer,
    gradients: Mapping[int, Tensor],
    rate: float | None,
    device: torch.device,
    seed: int,
) -> dict[int, nn.Parameter]:
    """Copies of the parameters, by the identity of the originals, after a step by a copy."""
    with torch.inference_mode(False), torch.no_grad():
        copies = _copies(optimizer, gradients)
        clone = _clone(optimizer, copies)
        _override_rates(clone, rate)
    try:
        # some optimizers draw random numbers
        with torch.inference_mode(False), torch.enable_grad(), fixed_randomness(seed, device):
            _step_of(clone)(clone)
    except Exception as error:
        raise StateError(
            f"the update of {type(optimizer).__name__} cannot be worked out on a copy, by dense "
            f"gradients and without a closure ({type(error).__name__}: {error}); leave out the "
            "probe covariate_shift, or give learning_rate= and no optimizer."
        ) from error
    return copies


def _copies(optimizer: Optimizer, gradients: Mapping[int, Tensor]) -> dict[int, nn.Parameter]:
    """Copies of the optimizer's parameters by the identity of the originals."""
    copies = {}
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        twin = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        if id(parameter) in gradients:
            # a copy: some optimizers write to the gradient
            twin.grad = gradients[id(parameter)].clone(memory_format=torch.preserve_format)
        copies[id(parameter)] = twin
    return copies


# What a step carries besides its algorithm: hooks, a scheduler's counter, a gradient scaler's word.
_NOT_COPIED = ("step", "grad_scale", "found_inf")
_HOOKS = "_optimizer_"


def _clone(optimizer: Optimizer, copies: Mapping[int, nn.Parameter]) -> Optimizer:
    clone = type(optimizer).__new__(type(optimizer))
    memo: dict[int, Any] = {**copies, id(optimizer): clone}
    for name, value in vars(optimizer).items():
        if name in _NOT_COPIED:
            continue
        try:
            copied = type(value)() if name.startswith(_HOOKS) else copy.deepcopy(value, memo)
        except Exception as error:
            raise StateError(
                f"the optimizer cannot be copied to work out its update ({name!r}: "
                f"{type(error).__name__}: {error}); leave out the probe covariate_shift."
            ) from error
        clone.__dict__[name] = copied
    return clone


def _override_rates(clone: Optimizer, learning_rate: float | None) -> None:
    if learning_rate is not None:
        for group in clone.param_groups:
            group["lr"] = learning_rate


def _step_of(clone: Optimizer) -> Any:
    """The step without the hooks that torch wraps around every optimizer's."""
    step = type(clone).step
    return getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
