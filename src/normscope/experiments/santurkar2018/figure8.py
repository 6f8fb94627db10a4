"""Figure 8: distributions of activations of the deep linear network over training."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.deep_linear import SCALES, on_deep_linear
from normscope.experiments.santurkar2018.shape import chosen_layers, distributions
from normscope.plots.distributions import distributions_over_training
from normscope.results import Claim

__all__ = ["figure8"]


def _claims(results: xr.Dataset) -> list[Claim]:
    """None: the caption describes a picture and states nothing of it."""
    return []


@experiment(
    "santurkar2018/figure8", claims=_claims, figure=distributions_over_training, scales=SCALES
)
@on_deep_linear(("none", "batch"))
def figure8(results: xr.Dataset) -> xr.Dataset:
    """Distributions of a sampled activation of some layers of the DLN over training.

    Reference: santurkar2018, Figure 8.

    Args:
        results: of the trainings.

    Returns:
        ``histogram`` over (norm, step, layer, bin), and its ends.
    """
    return distributions(results, chosen_layers(results, 4))
