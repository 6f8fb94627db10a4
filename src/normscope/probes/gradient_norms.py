"""The gradient norm of each layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from normscope.probes.gradients import squared_norms
from normscope.probes.probe import PROBES, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.context import StepContext


@PROBES.register(name="gradient_norms")
class GradientNorms(Probe):
    """l2 norm of the gradient of each layer's own parameters, its weight and bias.

    Measures ``gradient_norm``; NaN for a layer that is frozen or does not run.

    Args:
        every: minimum number of training steps between two measurements.
    """

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        return {"gradient_norm": ("layer",)}

    def measure(self, context: StepContext) -> Values:
        """Return one norm for each layer."""
        sizes = squared_norms(context.gradient)
        norms = []
        for layer in context.layers:
            own = [sizes[name] for name in layer.parameters if name in sizes]
            norms.append(math.sqrt(sum(own)) if own else math.nan)
        return {"gradient_norm": np.array(norms)}
