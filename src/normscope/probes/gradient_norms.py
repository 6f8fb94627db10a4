"""The size of each layer's gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from normscope.probes.comparison import squared_norms
from normscope.probes.probe import PROBES, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.moment import Moment

__all__ = ["GradientNorms"]


@PROBES.register(name="gradient_norms")
class GradientNorms(Probe):
    """l2 norm of the gradient by each layer's own parameters, its weight and bias.

    Measures ``gradient_norm``; NaN for a layer that is frozen or does not run.

    Args:
        every: at least so many training steps from one measurement to the next.
    """

    name = "gradient_norms"

    @property
    def variables(self) -> Dimensions:
        """What it measures, with the dimensions after ``step``."""
        return {"gradient_norm": ("layer",)}

    def measure(self, moment: Moment) -> Values:
        """One norm for each layer."""
        sizes = squared_norms(moment.gradient)
        norms = []
        for layer in moment.layers:
            own = [sizes[name] for name in layer.parameters if name in sizes]
            norms.append(math.sqrt(sum(own)) if own else math.nan)
        return {"gradient_norm": np.array(norms)}
