"""Figure 11: l_p normalization on VGG, training and landscape."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.shape import LANDSCAPE
from normscope.experiments.santurkar2018.statements import L_P, is_better_throughout
from normscope.experiments.santurkar2018.vgg import SCALES, on_vgg
from normscope.plots.loss_landscape import training_and_landscape
from normscope.results import Claim

__all__ = ["figure11"]


def _claims(results: xr.Dataset) -> list[Claim]:
    return is_better_throughout(results, "santurkar2018, Figure 11", "VGG", second_half=True)


@experiment("santurkar2018/figure11", claims=_claims, figure=training_and_landscape, scales=SCALES)
@on_vgg(("none", "batch", *L_P))
def figure11(results: xr.Dataset) -> xr.Dataset:
    """Training loss and landscape of VGG under l_p normalization.

    Reference: santurkar2018, Figure 11.

    Args:
        results: of the trainings.

    Returns:
        ``training_loss`` and the landscape over (norm, seed, step).
    """
    return results[list(LANDSCAPE)]
