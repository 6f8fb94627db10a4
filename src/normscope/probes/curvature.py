"""The sharpness of the loss: the top eigenvalue of its curvature."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from normscope.curvature.kinds import KINDS
from normscope.curvature.top_eigenvalue import top_eigenvalue
from normscope.probes.cost import Cost
from normscope.probes.gradients import squared_norms
from normscope.probes.probe import PROBES, Dimensions, Probe, Values
from normscope.problem.modes import check_mode
from normscope.registry import unknown_name
from normscope.warn import silenced

if TYPE_CHECKING:
    from normscope.curvature.top_eigenvalue import TopEigenvalue
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
