"""How well the gradient predicts the gradients along its direction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from normscope.probes.probe import PROBES, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.context import StepContext


@PROBES.register(name="gradient_predictiveness")
class GradientPredictiveness(Probe):
    r"""Change of the gradient along its own direction: l2 distance and cosine.

    .. math:: \lVert \nabla L(\theta) - \nabla L(\theta - s \eta g) \rVert_2

    for multiples s of the learning rate. Measures ``gradient_distance`` and ``gradient_cosine`` at
    each distance, and the minimum and maximum of both (``_low``, ``_high``).

    Reference: santurkar2018, Figures 4 (b) and 10. Notation: s = distance.

    Args:
        every: minimum number of training steps between two measurements.
    """

    ray = "gradients"
    needs_pass = False
    needs_learning_rate = True

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        curves = ("gradient_distance", "gradient_cosine")
        bands = (f"{curve}_{end}" for curve in curves for end in ("low", "high"))
        return dict.fromkeys(curves, ("distance",)) | dict.fromkeys(bands, ())

    def measure(self, context: StepContext) -> Values:
        """Return distances and cosines along the ray and their ranges."""
        curves = {
            "gradient_distance": context.ray.differences,
            "gradient_cosine": context.ray.cosines,
        }
        values: Values = dict(curves)
        for name, curve in curves.items():
            values |= {f"{name}_low": np.min(curve), f"{name}_high": np.max(curve)}
        return values
