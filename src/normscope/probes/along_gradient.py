"""Probes along the gradient: the loss, the gradient's change and its rate of change (roughness)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from normscope.probes.curvature import hessian_product
from normscope.probes.probe import PROBES, Cost, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.context import StepContext


class _RayProbe(Probe):
    """Base of the probes that need only the points on the ray."""

    needs_pass = False
    needs_learning_rate = True


@PROBES.register(name="loss_variation")
class LossVariation(_RayProbe):
    r"""Loss at steps of several lengths along the negative gradient, and its range.

    .. math:: L(\theta - s \eta g)

    for multiples s of the learning rate. The model is evaluated there, not trained. Measures
    ``ray_loss`` at each distance and its minimum and maximum, ``loss_low`` and ``loss_high``.

    Reference: santurkar2018, Figure 4 (a). Notation: s = distance.

    Args:
        every: minimum number of training steps between two measurements.
    """

    ray = "losses"

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        return {"ray_loss": ("distance",), "loss_low": (), "loss_high": ()}

    def measure(self, context: StepContext) -> Values:
        """Return the losses along the ray and their range."""
        losses = context.ray.losses
        return {"ray_loss": losses, "loss_low": np.min(losses), "loss_high": np.max(losses)}


@PROBES.register(name="gradient_predictiveness")
class GradientPredictiveness(_RayProbe):
    r"""Change of the gradient along its own direction: l2 distance and cosine.

    .. math:: \lVert \nabla L(\theta) - \nabla L(\theta - s \eta g) \rVert_2

    for multiples s of the learning rate. Measures ``gradient_distance`` and ``gradient_cosine`` at
    each distance, and the minimum and maximum of both (``_low``, ``_high``).

    Reference: santurkar2018, Figures 4 (b) and 10. Notation: s = distance.

    Args:
        every: minimum number of training steps between two measurements.
    """

    ray = "gradients"

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        curves = ("gradient_distance", "gradient_cosine")
        bands = (f"{curve}_{end}" for curve in curves for end in ("low", "high"))
        return dict.fromkeys(curves, ("distance",)) | dict.fromkeys(bands, ())

    def measure(self, context: StepContext) -> Values:
        """Return distances and cosines along the ray and their ranges."""
        values: Values = {}
        curves = (context.ray.differences, context.ray.cosines)
        for name, curve in zip(("gradient_distance", "gradient_cosine"), curves, strict=True):
            values |= {name: curve, f"{name}_low": np.min(curve), f"{name}_high": np.max(curve)}
        return values


@PROBES.register(name="effective_smoothness")
class EffectiveSmoothness(_RayProbe):
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
