"""How the loss varies along the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from normscope.probes.probe import PROBES, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.moment import Moment

__all__ = ["LossVariation"]


@PROBES.register(name="loss_variation")
class LossVariation(Probe):
    r"""Loss at steps of several lengths along the negative gradient, and its range.

    .. math:: L(\theta - s \eta g)

    for the multiples s of the learning rate. The model is evaluated there, not trained. Measures
    ``ray_loss`` at each distance and its least and largest value, ``loss_low`` and ``loss_high``.

    Reference: santurkar2018, Figure 4 (a). Notation: s = distance.

    Args:
        every: at least so many training steps from one measurement to the next.
    """

    name = "loss_variation"
    ray = "losses"
    needs_pass = False
    needs_learning_rate = True

    @property
    def variables(self) -> Dimensions:
        """What it measures, with the dimensions after ``step``."""
        return {"ray_loss": ("distance",), "loss_low": (), "loss_high": ()}

    def measure(self, moment: Moment) -> Values:
        """The losses along the ray and their band."""
        losses = moment.ray.losses
        return {"ray_loss": losses, "loss_low": np.min(losses), "loss_high": np.max(losses)}
