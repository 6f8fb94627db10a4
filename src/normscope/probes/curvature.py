"""The sharpness of the loss: the top eigenvalue of its curvature."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np

from normscope.curvature.products import KINDS
from normscope.curvature.top_eigenvalue import top_eigenvalue
from normscope.errors import NormscopeWarning
from normscope.probes.comparison import squared_norms
from normscope.probes.probe import PROBES, Cost, Dimensions, Probe, Values
from normscope.problem.modes import MODES
from normscope.registry import unknown_name

if TYPE_CHECKING:
    from normscope.curvature.result import TopEigenvalue
    from normscope.probes.moment import Moment

__all__ = ["Curvature"]


@PROBES.register(name="curvature")
class Curvature(Probe):
    """Top eigenvalue of the Hessian (or Fisher, or Gauss-Newton matrix) on the step's batch.

    Each search starts from the vector of the last one, which has moved little: two or three
    products are enough then. Measures ``top_eigenvalue`` and ``top_eigenvalue_residual``, the
    relative residual that says how far to trust it; both NaN at steps where the probe is not due
    or the loss or its gradient is not finite, or the products fail (with one warning).

    Args:
        kind: "hessian", "fisher" or "ggn".
        mode: "train", "frozen" or "eval": how batch statistics enter.
        tolerance: on the relative residual.
        max_products: after how many products to give up.
        every: at least so many training steps from one measurement to the next.
    """

    name = "curvature"

    def __init__(
        self,
        kind: str = "hessian",
        mode: str = "train",
        tolerance: float = 1e-2,
        max_products: int = 60,
        every: int | None = None,
    ) -> None:
        super().__init__(every)
        if kind not in KINDS:
            raise unknown_name("kind of curvature", kind, KINDS)
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        self.kind = kind
        self.mode = mode
        self.tolerance = tolerance
        self.max_products = max_products
        self._start: TopEigenvalue | None = None

    def reset(self, seed: int) -> None:
        """Forget the last vector."""
        self._start = None

    @property
    def variables(self) -> Dimensions:
        """What it measures, with the dimensions after ``step``."""
        return {"top_eigenvalue": (), "top_eigenvalue_residual": ()}

    def measure(self, moment: Moment) -> Values:
        """The eigenvalue and its residual."""
        if not math.isfinite(moment.loss) or not moment.gradient:
            return {name: np.asarray(math.nan) for name in self.variables}
        if not all(math.isfinite(size) for size in squared_norms(moment.gradient).values()):
            return self.without(self.variables, "the loss is finite, but its gradient is not")
        try:
            found = self._found(moment)
        except (RuntimeError, ValueError) as error:
            return self.without(self.variables, str(error))
        self._start = found
        return {
            "top_eigenvalue": np.asarray(found.value),
            "top_eigenvalue_residual": np.asarray(found.residual),
        }

    def _found(self, moment: Moment) -> TopEigenvalue:
        start = self._start
        if start is not None and start.vectors.shape[0] != _size(moment):
            start = None  # other parameters are trained than before
        with moment.passes.alone() as problem, warnings.catch_warnings():
            warnings.simplefilter("ignore", NormscopeWarning)  # the residual is in the results
            return top_eigenvalue(
                problem.model,
                problem.loss,
                problem.data,
                kind=self.kind,
                mode=self.mode,
                tol=self.tolerance,
                max_products=self.max_products,
                params=list(moment.gradient),
                seed=moment.seed,
                start=start,
            )

    def cost(self, layers: int, points: int) -> Cost:
        """A few products, each of two to three passes."""
        return Cost(10, "about 2 to 3 products with the matrix after the first", exact=False)


def _size(moment: Moment) -> int:
    return sum(gradient.numel() for gradient in moment.gradient.values())
