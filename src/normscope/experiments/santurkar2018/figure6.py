"""Figure 6: internal covariate shift of many layers of both networks."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.both import SCALES, linear_part, on_both
from normscope.experiments.santurkar2018.statements import shifts_no_less
from normscope.plots.layer_shift import shift_by_layer
from normscope.results import Claim

__all__ = ["figure6"]


def _claims(results: xr.Dataset) -> list[Claim]:
    source = "santurkar2018, Figure 6"
    return [
        *shifts_no_less(results, source, "VGG"),
        *shifts_no_less(linear_part(results), source, "DLN"),
    ]


@experiment("santurkar2018/figure6", claims=_claims, figure=shift_by_layer, scales=SCALES)
@on_both(("none", "batch"))
def figure6(results: xr.Dataset) -> xr.Dataset:
    """Covariate shift (Definition 2.1) of VGG and DLN, layer by layer.

    Reference: santurkar2018, Figure 6 and Definition 2.1.

    Args:
        results: of one network's trainings.

    Returns:
        ``shift_cosine`` and ``shift_distance`` over (norm, seed, step, layer); of the deep linear
        network with ``linear_`` before every name.
    """
    return results[["shift_cosine", "shift_distance"]]
