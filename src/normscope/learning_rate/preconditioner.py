"""The curvature that Adam and RMSprop see: every parameter measured in its own unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from normscope.curvature.operator import CurvatureOperator
from normscope.learning_rate.rules import UpdateRule
from normscope.problem.parameters import ParameterLayout

__all__ = ["Preconditioned", "Preconditioner", "preconditioned_eigenvalue", "preconditioner_of"]


@dataclass(frozen=True)
class Preconditioner:
    """What the optimizer divides each entry of the gradient by.

    Args:
        scale: flat, in the layout's order, positive.
        is_given: whether it comes from the optimizer's state, rather than from a few gradients.
        decay: weight decay that is part of the gradient, entry by entry; None if there is none.
    """

    scale: Tensor
    is_given: bool
    decay: Tensor | None = None


@dataclass(frozen=True)
class Preconditioned:
    """The largest eigenvalue of the scaled curvature.

    Args:
        value: the eigenvalue.
        vector: its vector, in scaled parameters.
        products: with the curvature.
    """

    value: float
    vector: Tensor
    products: int


def preconditioner_of(
    optimizer: Optimizer,
    rule: UpdateRule,
    parameters: Mapping[str, Tensor],
    layout: ParameterLayout,
    gradients: list[Tensor],
) -> Preconditioner | None:
    r"""The divisor of the optimizer's steps.

    .. math:: P = \sqrt{\hat v} + \epsilon

    Args:
        optimizer: its state holds the mean squared gradients once it has taken steps.
        rule: what it does.
        parameters: the model's own, by name.
        layout: of the flat vectors.
        gradients: flat ones of a few batches, whose mean square stands in for a missing state.

    Returns:
        The divisor; None for SGD.
    """
    if rule.second_moment is None:
        return None
    decay = None if rule.decoupled else _decay(optimizer, parameters, layout)
    held = [_second_moment(optimizer, rule, parameters[name]) for name in layout.names]
    if all(tensor is not None for tensor in held):
        moments, is_given = layout.join(held), True
    else:
        whole = torch.stack(gradients)
        if decay is not None:
            own = layout.join([parameters[name].detach() for name in layout.names])
            whole = whole + decay * own  # what the optimizer takes the square of
        moments, is_given = whole.square().mean(dim=0), False
    scale = moments.sqrt() + rule.epsilon
    # an entry without any gradient does not move: its step is not infinite
    floor = 1e-6 * float(scale.max()) + torch.finfo(scale.dtype).tiny
    if decay is not None and gradients:  # what the loss does not depend on cannot upset it
        decay = decay * torch.stack(gradients).any(dim=0)
    return Preconditioner(scale.clamp(min=floor), is_given, decay)


def _decay(
    optimizer: Optimizer, parameters: Mapping[str, Tensor], layout: ParameterLayout
) -> Tensor | None:
    """The weight decay of every entry; None if all are zero."""
    decays = {
        id(parameter): float(group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    found = [decays.get(id(parameters[name]), 0.0) for name in layout.names]
    if not any(found):
        return None
    sizes = torch.tensor([shape.numel() for shape in layout.shapes])
    return torch.tensor(found, dtype=layout.dtype).repeat_interleave(sizes).to(layout.device)


def _second_moment(optimizer: Optimizer, rule: UpdateRule, parameter: Tensor) -> Tensor | None:
    state = optimizer.state.get(parameter, {})
    if "exp_avg_sq" in state:  # Adam, whose first means are too small by a known factor
        assert rule.second_moment is not None
        correction = 1 - rule.second_moment ** float(state["step"])
        return torch.as_tensor(state.get("max_exp_avg_sq", state["exp_avg_sq"]) / correction)
    mean = state.get("square_avg")  # RMSprop
    if mean is None:
        return None
    if "grad_avg" in state:  # centered
        mean = (mean - state["grad_avg"].square()).clamp(min=0)
    return torch.as_tensor(mean)


def preconditioned_eigenvalue(
    operator: CurvatureOperator, preconditioner: Preconditioner, tolerance: float
) -> Preconditioned:
    r"""The largest eigenvalue of the curvature in units of the optimizer's steps.

    .. math:: \lambda_{\max}(P^{-1/2} (G + W) P^{-1/2})

    Args:
        operator: G.
        preconditioner: P, and the diagonal W of the weight decay in the gradient.
        tolerance: relative.

    Returns:
        Value and vector.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    root = preconditioner.scale.sqrt()
    products = 0

    def times(values: np.ndarray) -> np.ndarray:
        nonlocal products
        products += 1
        vector = torch.as_tensor(values.reshape(-1), dtype=root.dtype, device=root.device)
        product = operator @ (vector / root) / root
        if preconditioner.decay is not None:
            product = product + vector * preconditioner.decay / preconditioner.scale
        return product.double().cpu().numpy()

    size = operator.shape[0]
    if size == 1:
        return Preconditioned(float(times(np.ones(1))[0]), torch.ones_like(root), 1)
    start = torch.randn(size, generator=torch.Generator().manual_seed(0)).double().numpy()
    scaled = LinearOperator((size, size), matvec=times, dtype=np.float64)
    values, vectors = eigsh(scaled, k=1, which="LA", tol=tolerance, v0=start, ncv=min(size, 12))
    vector = torch.as_tensor(vectors[:, 0], dtype=root.dtype, device=root.device)
    return Preconditioned(float(values[0]), vector, products)
