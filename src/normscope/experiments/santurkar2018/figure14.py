"""Figure 14: distributions of VGG's activations under l_p normalization."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.activation_statements import drifts_more
from normscope.experiments.santurkar2018.shape import (
    chosen_layers,
    distributions,
    normalized_layers,
)
from normscope.experiments.santurkar2018.statements import L_P
from normscope.experiments.santurkar2018.vgg import SCALES, on_vgg
from normscope.plots.distributions import distributions_over_training
from normscope.results import Claim

__all__ = ["figure14"]


def _claims(results: xr.Dataset) -> list[Claim]:
    source = "santurkar2018, Figure 14"
    return [drifts_more(results, norm, source) for norm in L_P]


@experiment(
    "santurkar2018/figure14", claims=_claims, figure=distributions_over_training, scales=SCALES
)
@on_vgg(("none", "batch", *L_P))
def figure14(results: xr.Dataset) -> xr.Dataset:
    """Distributions of sampled activations of VGG under l_p normalization over training.

    Reference: santurkar2018, Figure 14.

    Args:
        results: of the trainings.

    Returns:
        ``histogram`` over (norm, step, layer, bin) and its ends for the layers to be shown;
        ``activation_mean`` and ``activation_variance`` over (norm, seed, step, layer, unit) for
        all that a norm layer follows.
    """
    moved = normalized_layers(results)
    shown = distributions(results, chosen_layers(moved, 3))
    moments = moved[["activation_mean", "activation_variance"]]
    return moments.merge(shown.reindex(layer=moved["layer"]), compat="equals")
