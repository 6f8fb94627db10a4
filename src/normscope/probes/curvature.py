"""The curvature of a batch's loss: its top eigenvalue, and the Hessian times a direction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from normscope.curvature.kinds import KINDS
from normscope.curvature.missing_derivatives import custom_functions, find_missing_derivative
from normscope.curvature.precision import perturbed
from normscope.curvature.top_eigenvalue import top_eigenvalue
from normscope.probes.gradients import squared_norms
from normscope.probes.probe import PROBES, Cost, Dimensions, Probe, Values
from normscope.problem.modes import check_mode
from normscope.registry import unknown_name
from normscope.warn import silenced

if TYPE_CHECKING:
    from normscope.curvature.top_eigenvalue import TopEigenvalue
    from normscope.probes.batch_loss import BatchLoss
    from normscope.probes.context import StepContext

TOLERANCE = 3e-3
"""On the relative residual of an eigenvalue.

A search may end at the second of two close eigenvalues, with a small residual. In 1584 steps of
small networks, with and without dropout and batch norm, against dense matrices, it did so once,
1.2 % below the first; at 1e-2, with 13 % fewer products, 8 times, up to 15 % below."""

MATVECS = 8
"""Usual number of a search: 4 to 8 without batch norm, 7 to 14 with it."""


@PROBES.register(name="curvature")
class Curvature(Probe):
    """Top eigenvalue of the Hessian (or another kind of curvature) on the step's batch.

    Each search starts from the last eigenvector, so that about 8 matvecs suffice. Measures
    ``top_eigenvalue`` and its relative residual ``top_eigenvalue_residual``: the largest distance
    to an eigenvalue, which may be the second of two close ones (about one search in 1000 at the
    default tolerance). Both are NaN where the probe is not due, the loss or its gradient is not
    finite, or the matvecs fail (with one warning).

    Args:
        kind: "hessian", "fisher", "ggn" or another name of `normscope.curvature.KINDS`.
        mode: "train", "frozen", "eval" or "as_is": how batch statistics are treated; None: as in
            the scope's other passes.
        tolerance: on the relative residual.
        max_products: maximum number of matvecs.
        every: minimum number of training steps between two measurements.
    """

    def __init__(
        self,
        kind: str = "hessian",
        mode: str | None = None,
        tolerance: float = TOLERANCE,
        max_products: int = 60,
        every: int | None = None,
    ) -> None:
        super().__init__(every)
        if kind not in KINDS:
            raise unknown_name("kind of curvature", kind, KINDS)
        if mode is not None:
            check_mode(mode)
        self.kind = kind
        self.mode = mode
        self.tolerance = tolerance
        self.max_products = max_products
        self._start: Tensor | None = None

    def reset(self, seed: int) -> None:
        """Clear the last eigenvector."""
        self._start = None

    def state_dict(self) -> dict[str, Any]:
        """Return the last eigenvector, from which the next search starts."""
        return {**super().state_dict(), "start": self._start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the last eigenvector."""
        super().load_state_dict(state)
        self._start = state["start"]

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        return {"top_eigenvalue": (), "top_eigenvalue_residual": ()}

    def measure(self, context: StepContext) -> Values:
        """Return the eigenvalue and its residual."""
        if not math.isfinite(context.loss) or not context.gradient:
            return {name: np.asarray(math.nan) for name in self.variables}
        if not all(math.isfinite(size) for size in squared_norms(context.gradient).values()):
            return self.missing(self.variables, "the loss is finite, but its gradient is not")
        try:
            found = self._top_eigenvalue(context)
        except (RuntimeError, ValueError) as error:
            return self.missing(self.variables, str(error))
        self._start = found.vectors
        return {
            "top_eigenvalue": np.asarray(found.value),
            "top_eigenvalue_residual": np.asarray(found.residual),
        }

    def _top_eigenvalue(self, context: StepContext) -> TopEigenvalue:
        start = self._start
        if start is not None and start.shape[0] != _size(context):
            start = None  # other parameters are trained than before
        with context.batch_loss.isolated_problem() as problem, silenced():
            # the residual is in the results
            return top_eigenvalue(
                problem.model,
                problem.loss,
                problem.data,
                kind=self.kind,
                mode=self.mode or context.batch_loss.mode,
                tol=self.tolerance,
                max_products=self.max_products,
                params=list(context.gradient),
                seed=context.seed,
                start=start,
            )

    def cost(self, layers: int, points: int) -> Cost:
        """Return a few matvecs, each of two to three passes."""
        return Cost(2.5 * MATVECS, f"about {MATVECS} matvecs", exact=False)


def _size(context: StepContext) -> int:
    return sum(gradient.numel() for gradient in context.gradient.values())


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
    context: StepContext, batch_loss: BatchLoss, direction: Mapping[str, Tensor], change: float
) -> Tensor:
    """Return the loss with its graph, at parameters that differ by a relative change."""
    tensors = context.copy_parameters()
    for number, name in enumerate(direction):
        moved = perturbed(tensors[name], change, number) if change else tensors[name]
        tensors[name] = moved.requires_grad_()
    with batch_loss.at(tensors, twice=True):
        return batch_loss.forward()
