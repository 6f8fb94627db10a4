"""Figure 9: the loss landscape of the deep linear network along the gradient."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.deep_linear import SCALES, on_deep_linear
from normscope.experiments.santurkar2018.shape import LANDSCAPE
from normscope.experiments.santurkar2018.statements import is_smoother
from normscope.plots.loss_landscape import landscape
from normscope.results import Claim

__all__ = ["figure9"]


def _claims(results: xr.Dataset) -> list[Claim]:
    return is_smoother(results, "batch", "santurkar2018, Figure 9", "DLN", second_half=False)


@experiment("santurkar2018/figure9", claims=_claims, figure=landscape, scales=SCALES)
@on_deep_linear(("none", "batch"))
def figure9(results: xr.Dataset) -> xr.Dataset:
    """Variation of loss and gradient along the gradient, and beta, of the DLN over training.

    Reference: santurkar2018, Figure 9.

    Args:
        results: of the trainings.

    Returns:
        ``loss_low``, ``loss_high``, ``gradient_distance_low``, ``gradient_distance_high``,
        ``effective_smoothness`` and ``training_loss`` over (norm, seed, step).
    """
    return results[list(LANDSCAPE)]
