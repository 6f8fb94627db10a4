"""The product of the Hessian of a batch's loss with a direction, as the training sees it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normscope.curvature.missing_derivatives import custom_functions, find_missing_derivative
from normscope.curvature.precision import perturbed

if TYPE_CHECKING:
    from normscope.probes.batch_loss import BatchLoss
    from normscope.probes.context import StepContext


def hessian_product(
    context: StepContext, direction: Mapping[str, Tensor], batch_loss: BatchLoss | None = None
) -> dict[str, Tensor]:
    """Return the Hessian of a batch's loss times a direction: same flags, masks and precision.

    Args:
        context: of the step, with the parameters.
        direction: by name of the parameter.
        batch_loss: the loss; None for that of the step's batch.

    Returns:
        The product by name, without parameters on which the gradient does not depend.
    """
    batch_loss = context.batch_loss if batch_loss is None else batch_loss
    tensors = context.copy_parameters()
    leaves = {name: tensors[name].requires_grad_() for name in direction}
    with batch_loss.at(tensors, twice=True):
        loss = batch_loss.forward()
        perturb = partial(_perturbed_loss, context, batch_loss, direction)
        if custom_functions(loss) and (error := find_missing_derivative(perturb)):
            raise error
        found = list(leaves.values())
        first = torch.autograd.grad(loss, found, create_graph=True, allow_unused=True)
        pairs = zip(direction.values(), first, strict=True)
        # a vector may have been made in inference mode, whose tensors no graph keeps
        along = [(vector.clone() * part).sum() for vector, part in pairs if part is not None]
        slope = torch.stack([part.double() for part in along]).sum()
        if not slope.requires_grad:  # the gradient is constant
            return {}
        second = torch.autograd.grad(slope, found, allow_unused=True)
    return {n: part for n, part in zip(leaves, second, strict=True) if part is not None}


def curvature_along(
    context: StepContext, direction: Mapping[str, Tensor], batch_loss: BatchLoss | None = None
) -> float:
    """Return d'Hd for a direction d; arguments as for `hessian_product`."""
    product = hessian_product(context, direction, batch_loss)
    parts = [(part.double() * direction[name].double()).sum() for name, part in product.items()]
    return float(torch.stack(parts).sum()) if parts else 0.0


def _perturbed_loss(
    context: StepContext,
    batch_loss: BatchLoss,
    direction: Mapping[str, Tensor],
    change: float,
) -> Tensor:
    """Return the loss with its graph, at parameters that differ by a relative change."""
    tensors = context.copy_parameters()
    for number, name in enumerate(direction):
        moved = perturbed(tensors[name], change, number) if change else tensors[name]
        tensors[name] = moved.requires_grad_()
    with batch_loss.at(tensors, twice=True):
        return batch_loss.forward()
