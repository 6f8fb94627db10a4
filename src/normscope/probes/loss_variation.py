"""The variation of the loss along the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from normscope.probes.probe import PROBES, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.context import StepContext


@PROBES.register(name="loss_variation")
class LossVariation(Probe):
    r"""Loss at steps of several lengths along the negative gradient, and its range.

    .. math:: L(\theta - s \eta g)

    for multiples s of the learning rate. The model is evaluated there, not trained. Measures
    ``ray_loss`` at each distance and its minimum and maximum, ``loss_low`` and ``loss_high``.

    Reference: santurkar2018, Figure 4 (a). Notation: s = distance.

    Args:
        every: minimum number of training steps between two measurements.
    """

    ray = "losses"
    needs_pass = False
    needs_learning_rate = True

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        return {"ray_loss": ("distance",), "loss_low": (), "loss_high": ()}

    def measure(self, context: StepContext) -> Values:
        """Return the losses along the ray and their range."""
        losses = context.ray.losses
        return {"ray_loss": losses, "loss_low": np.min(losses), "loss_high": np.max(losses)}
