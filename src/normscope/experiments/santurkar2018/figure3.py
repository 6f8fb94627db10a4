"""Figure 3: internal covariate shift of some layers of both networks, with how well they train."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.both import SCALES, linear_part, on_both
from normscope.experiments.santurkar2018.statements import shifts_no_less, trains_better
from normscope.plots.layer_shift import shift_with_training
from normscope.results import Claim

__all__ = ["figure3"]


def _claims(results: xr.Dataset) -> list[Claim]:
    """The verdict rests on all layers, also those that the figure does not show."""
    source = "santurkar2018, Figure 3"
    claims = []
    for network, part in (("VGG", results), ("DLN", linear_part(results))):
        claims += shifts_no_less(part, source, network)
        claims.append(trains_better(part, "batch", source, network))
    return claims


@experiment("santurkar2018/figure3", claims=_claims, figure=shift_with_training, scales=SCALES)
@on_both(("none", "batch"))
def figure3(results: xr.Dataset) -> xr.Dataset:
    """Covariate shift (Definition 2.1) of VGG and DLN, beside accuracy and loss.

    Reference: santurkar2018, Figure 3 and Definition 2.1.

    Args:
        results: of one network's trainings.

    Returns:
        ``shift_cosine`` and ``shift_distance`` over (norm, seed, step, layer) and the curves; of
        the deep linear network with ``linear_`` before every name.
    """
    accuracy = "training_accuracy"
    curves = [accuracy] if bool(results[accuracy].notnull().any()) else []
    return results[["shift_cosine", "shift_distance", "training_loss", *curves]]
