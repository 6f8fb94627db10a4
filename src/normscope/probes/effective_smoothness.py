"""The largest rate at which the gradient changes along its own direction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from normscope.curvature.operator import operator
from normscope.probes.probe import PROBES, Cost, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.moment import Moment

__all__ = ["EffectiveSmoothness"]


@PROBES.register(name="effective_smoothness")
class EffectiveSmoothness(Probe):
    r"""The effective beta-smoothness: the steepest change of the gradient met along the ray.

    .. math:: \beta = \max_s
        \frac{\lVert \nabla L(\theta) - \nabla L(\theta - s \eta g) \rVert}
        {\lVert s \eta g \rVert}

    Measures ``smoothness`` at each distance, its largest value ``effective_smoothness``, and, if
    asked for, its limit for short steps, ``local_smoothness``: |H g| / |g| with the Hessian H in
    train mode. Zero over zero, for a learning rate of zero, is NaN.

    Reference: santurkar2018, Figure 4 (c). Notation: beta = effective_smoothness, s = distance.

    Args:
        local: whether to measure the local value too, at the cost of a product with the Hessian.
        every: at least so many training steps from one measurement to the next.
    """

    name = "effective_smoothness"
    ray = "gradients"
    needs_learning_rate = True

    def __init__(self, local: bool = False, every: int | None = None) -> None:
        super().__init__(every)
        self.local = local

    @property
    def variables(self) -> Dimensions:
        """What it measures, with the dimensions after ``step``."""
        local = {"local_smoothness": ()} if self.local else {}
        return {"smoothness": ("distance",), "effective_smoothness": (), **local}

    def measure(self, moment: Moment) -> Values:
        """The slopes along the ray, the largest, and the local one."""
        with np.errstate(invalid="ignore", divide="ignore"):
            slopes = moment.ray.differences / moment.ray.lengths
        values: Values = {"smoothness": slopes, "effective_smoothness": np.max(slopes)}
        if self.local:
            values["local_smoothness"] = np.asarray(_local_smoothness(moment))
        return values

    def cost(self, layers: int, points: int) -> Cost:
        """A product with the Hessian, if the local value is asked for."""
        return Cost(4, "a product with the Hessian", exact=False) if self.local else Cost(0)


def _local_smoothness(moment: Moment) -> float:
    r"""The slope of the gradient at the parameters, along the ray's direction.

    .. math:: \lVert H d \rVert / \lVert d \rVert, \qquad d = \eta g
    """
    problem, names = moment.passes.problem, list(moment.gradient)
    if not np.isfinite(moment.loss):
        return float("nan")
    with moment.passes.alone():
        hessian = operator(
            problem.model, problem.loss, problem.data, "hessian", params=names, seed=moment.seed
        )
        parts = [moment.gradient[name] * moment.rates[name] for name in hessian.names]
        direction = hessian.evaluator.layout.join(parts)
        length = torch.linalg.vector_norm(direction)
        if not (bool(torch.isfinite(length)) and length > 0):
            return float("nan")
        return float(torch.linalg.vector_norm(hessian @ (direction / length)))
