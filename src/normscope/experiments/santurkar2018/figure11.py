"""Figure 11: l_p normalization on VGG, training and landscape."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.shape import LANDSCAPE
from normscope.experiments.santurkar2018.statements import is_smoother, trains_better
from normscope.experiments.santurkar2018.vgg import SCALES, on_vgg
from normscope.plots.santurkar_landscape import training_and_landscape
from normscope.results import Claim

__all__ = ["figure11"]


def _claims(results: xr.Dataset) -> list[Claim]:
    source = "santurkar2018, Figure 11"
    claims = []
    for norm in ("batch", "l1", "l2", "linf"):
        claims.append(trains_better(results, norm, source, "VGG"))
        claims += is_smoother(results, norm, source, "VGG", second_half=True)
    return claims


@experiment("santurkar2018/figure11", claims=_claims, figure=training_and_landscape, scales=SCALES)
@on_vgg(("none", "batch", "l1", "l2", "linf"))
def figure11(results: xr.Dataset) -> xr.Dataset:
    """Training loss and landscape of VGG under l_p normalization.

    Reference: santurkar2018, Figure 11.

    Args:
        results: of the trainings.

    Returns:
        ``training_loss`` and the landscape over (norm, seed, step).
    """
    return results[["training_loss", *LANDSCAPE]]
