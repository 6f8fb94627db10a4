"""The roughness (beta), the paper's effective smoothness: how fast the gradient changes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from normscope.probes.cost import Cost
from normscope.probes.hessian_product import hessian_product
from normscope.probes.probe import PROBES, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.context import StepContext


@PROBES.register(name="effective_smoothness")
class EffectiveSmoothness(Probe):
    r"""Roughness (beta): the largest change of the gradient per length on the ray.

    .. math:: \beta = \max_s
        \frac{\lVert \nabla L(\theta) - \nabla L(\theta - s \eta g) \rVert}
        {\lVert s \eta g \rVert}

    Measures ``smoothness`` at each distance, its maximum ``effective_smoothness``, and optionally
    its limit for short steps, ``local_smoothness``: |H g| / |g| with the Hessian H of the same
    function (same flags, dropout masks and precision). NaN for a learning rate of zero.

    Reference: santurkar2018, Figure 4 (c). Notation: beta = effective_smoothness, s = distance.

    Args:
        local: whether to measure the local value too, which costs a Hessian-vector product.
        every: minimum number of training steps between two measurements.
    """

    ray = "gradients"
    needs_pass = False
    needs_learning_rate = True

    def __init__(self, local: bool = False, every: int | None = None) -> None:
        super().__init__(every)
        self.local = local

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        local = {"local_smoothness": ()} if self.local else {}
        return {"smoothness": ("distance",), "effective_smoothness": (), **local}

    def measure(self, context: StepContext) -> Values:
        """Return the slopes along the ray, their maximum, and the local slope."""
        with np.errstate(invalid="ignore", divide="ignore"):
            slopes = context.ray.differences / context.ray.lengths
        values: Values = {"smoothness": slopes, "effective_smoothness": np.max(slopes)}
        if self.local:
            try:
                values["local_smoothness"] = np.asarray(_local_smoothness(context))
            except (RuntimeError, ValueError) as error:  # such as a missing second derivative
                values |= self.missing(("local_smoothness",), str(error))
        return values

    def cost(self, layers: int, points: int) -> Cost:
        """Return a Hessian-vector product, if the local value is asked for."""
        return Cost(4, "a product with the Hessian", exact=False) if self.local else Cost(0)


def _local_smoothness(context: StepContext) -> float:
    r"""Return the slope of the gradient at the parameters, along the ray.

    .. math:: \lVert H d \rVert / \lVert d \rVert, \qquad d = \eta g
    """
    rates = context.learning_rates
    lengths = [torch.linalg.vector_norm(g) * rates[n] for n, g in context.gradient.items()]
    length = math.sqrt(sum(float(each) ** 2 for each in lengths))
    if not (math.isfinite(context.loss) and math.isfinite(length) and length > 0):
        return math.nan
    direction = {name: g * (rates[name] / length) for name, g in context.gradient.items()}
    product = hessian_product(context, direction)
    return math.sqrt(sum(float(torch.linalg.vector_norm(part)) ** 2 for part in product.values()))
