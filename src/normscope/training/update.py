"""The update of a step: the optimizer's own, by the shortest way to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as torch_optimizers

__all__ = ["take_update"]


def take_update(optimizer: Optimizer) -> None:
    """What ``optimizer.step()`` does, to the bit.

    Fused SGD is one kernel; what ``step`` does around it (profiling, hooks, grouping) takes longer
    than the kernel on a small net. Where none of it is in use, the kernel is called directly.
    That also serves a parameter whose first gradient comes late, over which ``step`` stumbles.
    With sparse gradients, which no fused step takes, the optimizer goes on unfused.

    Args:
        optimizer: any optimizer whose parameters hold their gradients.
    """
    if not _is_plain_fused_sgd(optimizer):
        optimizer.step()
        return
    if _has_sparse_gradient(optimizer):
        for group in optimizer.param_groups:
            group["fused"] = False  # the kernel takes dense gradients only
        optimizer.step()
        return
    with torch.no_grad():
        for group in optimizer.param_groups:
            _update_group(optimizer, group)


def _is_plain_fused_sgd(optimizer: Optimizer) -> bool:
    """Whether nobody has hooked into the step: hooks, a scheduler's counter, a gradient scaler."""
    return (
        type(optimizer) is SGD
        and hasattr(torch, "_fused_sgd_")  # private: it may go
        and vars(optimizer).keys().isdisjoint(("step", "grad_scale", "found_inf"))
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
        and not torch_optimizers._global_optimizer_pre_hooks
        and not torch_optimizers._global_optimizer_post_hooks
        and all(
            group["fused"] and not group["differentiable"] and not isinstance(group["lr"], Tensor)
            for group in optimizer.param_groups
        )
    )


def _has_sparse_gradient(optimizer: Optimizer) -> bool:
    gradients = (p.grad for group in optimizer.param_groups for p in group["params"])
    return any(gradient is not None and gradient.is_sparse for gradient in gradients)


def _update_group(optimizer: Optimizer, group: dict[str, Any]) -> None:
    """Update one group; with momentum, a parameter's first gradient starts its buffer."""
    parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
    if group["momentum"] == 0:
        _call_kernel(group, parameters, [], is_first_step=False)
        return
    buffers = [optimizer.state[parameter].get("momentum_buffer") for parameter in parameters]
    fresh = [p for p, buffer in zip(parameters, buffers, strict=True) if buffer is None]
    if fresh:
        known = [p for p, buffer in zip(parameters, buffers, strict=True) if buffer is not None]
        for parameter in fresh:
            optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter)
        started = [optimizer.state[parameter]["momentum_buffer"] for parameter in fresh]
        _call_kernel(group, fresh, started, is_first_step=True)
        parameters, buffers = known, [buffer for buffer in buffers if buffer is not None]
    _call_kernel(group, parameters, buffers, is_first_step=False)


def _call_kernel(
    group: dict[str, Any],
    parameters: list[Tensor],
    buffers: list[Tensor],
    is_first_step: bool,
) -> None:
    if not parameters:
        return
    torch._fused_sgd_(
        parameters,
        [parameter.grad for parameter in parameters if parameter.grad is not None],
        buffers,
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
        is_first_step=is_first_step,
    )
