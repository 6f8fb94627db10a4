"""How far the gradient predicts the gradients ahead of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from normscope.probes.probe import PROBES, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.moment import Moment

__all__ = ["GradientPredictiveness"]


@PROBES.register(name="gradient_predictiveness")
class GradientPredictiveness(Probe):
    r"""Change of the gradient along its own direction: l2 distance and cosine.

    .. math:: \lVert \nabla L(\theta) - \nabla L(\theta - s \eta g) \rVert_2

    for the multiples s of the learning rate. Measures ``gradient_distance`` and
    ``gradient_cosine`` at each distance, and of both the least and largest value (``_low``,
    ``_high``).

    Reference: santurkar2018, Figures 4 (b) and 10. Notation: s = distance.

    Args:
        every: at least so many training steps from one measurement to the next.
    """

    name = "gradient_predictiveness"
    ray = "gradients"
    needs_pass = False
    needs_learning_rate = True

    @property
    def variables(self) -> Dimensions:
        """What it measures, with the dimensions after ``step``."""
        curves = ("gradient_distance", "gradient_cosine")
        bands = (f"{curve}_{end}" for curve in curves for end in ("low", "high"))
        return dict.fromkeys(curves, ("distance",)) | dict.fromkeys(bands, ())

    def measure(self, moment: Moment) -> Values:
        """Distances and cosines along the ray and their bands."""
        curves = {
            "gradient_distance": moment.ray.differences,
            "gradient_cosine": moment.ray.cosines,
        }
        values: Values = dict(curves)
        for name, curve in curves.items():
            values |= {f"{name}_low": np.min(curve), f"{name}_high": np.max(curve)}
        return values
