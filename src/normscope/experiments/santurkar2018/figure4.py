"""Figure 4: the loss landscape of VGG along the gradient."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.shape import LANDSCAPE
from normscope.experiments.santurkar2018.statements import is_smoother
from normscope.experiments.santurkar2018.vgg import SCALES, on_vgg
from normscope.plots.loss_landscape import landscape
from normscope.results import Claim

__all__ = ["figure4"]


def _claims(results: xr.Dataset) -> list[Claim]:
    return is_smoother(results, "batch", "santurkar2018, Figure 4", "VGG", second_half=True)


@experiment("santurkar2018/figure4", claims=_claims, figure=landscape, scales=SCALES)
@on_vgg(("none", "batch"))
def figure4(results: xr.Dataset) -> xr.Dataset:
    """Variation of loss and gradient along the gradient, and beta, of VGG over training.

    Reference: santurkar2018, Figure 4.

    Args:
        results: of the trainings.

    Returns:
        ``loss_low``, ``loss_high``, ``gradient_distance_low``, ``gradient_distance_high``,
        ``effective_smoothness`` and ``training_loss`` over (norm, seed, step).
    """
    return results[list(LANDSCAPE)]
