"""Figure 13: how both networks train under l_p normalization."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.both import SCALES, linear_part, on_both
from normscope.experiments.santurkar2018.statements import L_P, trains_as_well
from normscope.plots.training_curves import training_of_both
from normscope.results import Claim

__all__ = ["figure13"]


def _claims(results: xr.Dataset) -> list[Claim]:
    source = "santurkar2018, Figure 13"
    parts = (("VGG", results), ("DLN", linear_part(results)))
    return [trains_as_well(part, norm, source, network) for network, part in parts for norm in L_P]


@experiment("santurkar2018/figure13", claims=_claims, figure=training_of_both, scales=SCALES)
@on_both(("none", "batch", *L_P))
def figure13(results: xr.Dataset) -> xr.Dataset:
    """Training of VGG and DLN under l_p normalization.

    Reference: santurkar2018, Figure 13.

    Args:
        results: of one network's trainings.

    Returns:
        ``training_loss`` and, for VGG, ``training_accuracy`` over (norm, seed, step); of the deep
        linear network with ``linear_`` before every name.
    """
    accuracy = "training_accuracy"
    curves = [accuracy] if bool(results[accuracy].notnull().any()) else []
    return results[["training_loss", *curves]]
