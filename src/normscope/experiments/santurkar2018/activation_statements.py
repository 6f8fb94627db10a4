"""Statements on activations as claims; `judge` has the rules that decide them."""

from __future__ import annotations

import xarray as xr

from normscope.experiments.santurkar2018.judge import compared
from normscope.experiments.santurkar2018.pooling import weighted_median
from normscope.experiments.santurkar2018.statements import NAMES
from normscope.results import Claim

__all__ = ["changes_moments_more", "drifts_more"]


def changes_moments_more(results: xr.Dataset, norm: str, source: str) -> list[Claim]:
    """Mean and variance of activations change more from step to step than the standard network's.

    Args:
        results: the moments' changes over (norm, seed, step, layer, unit).
        norm: that should change more.
        source: of the statement.

    Returns:
        A claim for the mean and one for the variance.
    """
    claims = []
    for moment in ("mean", "variance"):
        change = weighted_median(results[f"activation_{moment}_change"], ("step", "layer", "unit"))
        text = f"the {moment} of activations changes more between steps with {NAMES[norm]}"
        left, right = change.sel(norm="none"), change.sel(norm=norm)
        claims.append(compared(text, source, left, right, (NAMES["none"], NAMES[norm])))
    return claims


def drifts_more(results: xr.Dataset, norm: str, source: str) -> Claim:
    r"""Activations move further from their first distribution than the standard network's.

    .. math:: \sqrt{(\mu_t - \mu_0)^2 + (\sigma_t - \sigma_0)^2}

    the 2-Wasserstein distance of normal distributions with these moments.

    Args:
        results: ``activation_mean`` and ``activation_variance``, as in `changes_moments_more`.
        norm: that should move further.
        source: of the statement.

    Returns:
        The claim.
    """
    mean, deviation = results["activation_mean"], results["activation_variance"] ** 0.5
    squares = (mean - mean.isel(step=0)) ** 2 + (deviation - deviation.isel(step=0)) ** 2
    moved = squares**0.5
    drift = weighted_median(moved.isel(step=slice(1, None)), ("step", "layer", "unit"))
    text = f"the distribution of activations shifts more over training with the {NAMES[norm]}"
    left, right = drift.sel(norm="none"), drift.sel(norm=norm)
    return compared(text, source, left, right, (NAMES["none"], NAMES[norm]))
