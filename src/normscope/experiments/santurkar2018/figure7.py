"""Figure 7: how much the moments of VGG's activations change from step to step."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.activation_statements import changes_moments_more
from normscope.experiments.santurkar2018.shape import normalized_layers
from normscope.experiments.santurkar2018.statements import trains_better
from normscope.experiments.santurkar2018.vgg import SCALES, on_vgg
from normscope.plots.layer_shift import moment_changes
from normscope.results import Claim

__all__ = ["figure7"]


def _claims(results: xr.Dataset) -> list[Claim]:
    source = "santurkar2018, Figure 7"
    return [
        *changes_moments_more(results, "noisy", source),
        trains_better(results, "noisy", source, "VGG"),
    ]


@experiment("santurkar2018/figure7", claims=_claims, figure=moment_changes, scales=SCALES)
@on_vgg(("none", "batch", "noisy"))
def figure7(results: xr.Dataset) -> xr.Dataset:
    """Change of mean and variance of activations between successive steps of VGG's training.

    Reference: santurkar2018, Figure 7.

    Args:
        results: of the trainings.

    Returns:
        ``activation_mean_change`` and ``activation_variance_change`` over (norm, seed, step,
        layer, unit), and ``training_loss``.
    """
    names = ["activation_mean_change", "activation_variance_change", "training_loss"]
    return normalized_layers(results)[names]
