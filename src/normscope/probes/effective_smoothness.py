"""The largest rate at which the gradient changes along its own direction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

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
    asked for, its limit for short steps, ``local_smoothness``: |H g| / |g| with the Hessian H of
    the same function, flags, dropout masks and precision included. Zero over zero, for a learning
    rate of zero, is NaN.

    Reference: santurkar2018, Figure 4 (c). Notation: beta = effective_smoothness, s = distance.

    Args:
        local: whether to measure the local value too, at the cost of a product with the Hessian.
        every: at least so many training steps from one measurement to the next.
    """

    name = "effective_smoothness"
    ray = "gradients"
    needs_pass = False
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
            try:
                values["local_smoothness"] = np.asarray(_local_smoothness(moment))
            except (RuntimeError, ValueError) as error:  # such as a missing second derivative
                values |= self.without(("local_smoothness",), str(error))
        return values

    def cost(self, layers: int, points: int) -> Cost:
        """A product with the Hessian, if the local value is asked for."""
        return Cost(4, "a product with the Hessian", exact=False) if self.local else Cost(0)


def _local_smoothness(moment: Moment) -> float:
    r"""The slope of the gradient at the parameters, along the ray's direction.

    .. math:: \lVert H d \rVert / \lVert d \rVert, \qquad d = \eta g
    """
    lengths = [torch.linalg.vector_norm(g) * moment.rates[n] for n, g in moment.gradient.items()]
    length = math.sqrt(sum(float(each) ** 2 for each in lengths))
    if not (math.isfinite(moment.loss) and math.isfinite(length) and length > 0):
        return math.nan
    tensors = moment.at_parameters({})
    leaves = [tensors[name].requires_grad_() for name in moment.gradient]
    # the fused attention kernels have no second derivative
    with moment.passes.scene(tensors), sdpa_kernel(SDPBackend.MATH):
        loss = moment.passes.forward()
        first = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        pairs = zip(moment.gradient.items(), first, strict=True)
        along = [(g * (moment.rates[n] / length) * f).sum() for (n, g), f in pairs if f is not None]
        slope = torch.stack([part.double() for part in along]).sum()
        if not slope.requires_grad:  # the gradient is constant
            return 0.0
        second = torch.autograd.grad(slope, leaves, allow_unused=True)
    parts = [float(torch.linalg.vector_norm(part)) for part in second if part is not None]
    return math.sqrt(sum(part**2 for part in parts))
