"""Figure 2: noisy BatchNorm on VGG beside BatchNorm and none."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.shape import (
    CURVES,
    chosen_layers,
    distributions,
    normalized_layers,
)
from normscope.experiments.santurkar2018.statements import trains_better
from normscope.experiments.santurkar2018.vgg import SCALES, on_vgg
from normscope.plots.training_curves import accuracy_and_distributions
from normscope.results import Claim

__all__ = ["figure2"]


def _claims(results: xr.Dataset) -> list[Claim]:
    source = "santurkar2018, Figure 2"
    return [trains_better(results, norm, source, "VGG") for norm in ("noisy", "batch")]


@experiment(
    "santurkar2018/figure2", claims=_claims, figure=accuracy_and_distributions, scales=SCALES
)
@on_vgg(("none", "batch", "noisy"))
def figure2(results: xr.Dataset) -> xr.Dataset:
    """Accuracy of VGG with noisy BatchNorm, and the distributions of activations.

    Reference: santurkar2018, Figure 2.

    Args:
        results: of the trainings.

    Returns:
        The curves over (norm, seed, step), and histograms of a unit of two layers.
    """
    layers = chosen_layers(normalized_layers(results), 2)
    return results[list(CURVES)].merge(distributions(results, layers), compat="equals")
