"""Figure 10: how well the gradient predicts those ahead of it, against distance."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.both import SCALES, linear_part, on_both
from normscope.experiments.santurkar2018.statements import predicts_better
from normscope.plots.loss_landscape import predictiveness
from normscope.results import Claim

__all__ = ["figure10"]


def _claims(results: xr.Dataset) -> list[Claim]:
    source = "santurkar2018, Figure 10"
    return [
        predicts_better(results, "batch", source, "VGG", second_half=True),
        predicts_better(linear_part(results), "batch", source, "DLN", second_half=False),
    ]


@experiment("santurkar2018/figure10", claims=_claims, figure=predictiveness, scales=SCALES)
@on_both(("none", "batch"))
def figure10(results: xr.Dataset) -> xr.Dataset:
    """Change of the gradient against the distance moved along it, of VGG and DLN.

    Reference: santurkar2018, Figure 10.

    Args:
        results: of one network's trainings.

    Returns:
        ``gradient_distance`` over (norm, seed, step, distance) and ``training_loss``; of the deep
        linear network with ``linear_`` before every name.
    """
    return results[["gradient_distance", "training_loss"]]
