"""Figure 12: l_p normalization on the deep linear network, training and landscape."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.deep_linear import SCALES, on_deep_linear
from normscope.experiments.santurkar2018.shape import LANDSCAPE
from normscope.experiments.santurkar2018.statements import L_P, is_better_throughout
from normscope.plots.loss_landscape import training_and_landscape
from normscope.results import Claim

__all__ = ["figure12"]


def _claims(results: xr.Dataset) -> list[Claim]:
    return is_better_throughout(results, "santurkar2018, Figure 12", "DLN", second_half=False)


@experiment("santurkar2018/figure12", claims=_claims, figure=training_and_landscape, scales=SCALES)
@on_deep_linear(("none", "batch", *L_P))
def figure12(results: xr.Dataset) -> xr.Dataset:
    """Training loss and landscape of the DLN under l_p normalization.

    Reference: santurkar2018, Figure 12.

    Args:
        results: of the trainings.

    Returns:
        ``training_loss`` and the landscape over (norm, seed, step).
    """
    return results[list(LANDSCAPE)]
