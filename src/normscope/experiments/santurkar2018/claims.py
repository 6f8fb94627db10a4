"""Claims about training, landscape, covariate shift and activations; `judging` has the rules."""

from __future__ import annotations

import numpy as np
import xarray as xr

from normscope.experiments.santurkar2018.judging import (
    compared,
    geometric_mean,
    is_below,
    spread,
    weighted_mean,
    weighted_median,
)
from normscope.results import Claim

NAMES = {
    "none": "standard",
    "batch": "BatchNorm",
    "noisy": "noisy BatchNorm",
    "l1": "l1 norm",
    "l2": "l2 norm",
    "linf": "l-infinity norm",
}
_LANDSCAPE = {
    "loss_width": "variation of the loss along the gradient",
    "gradient_distance_high": "change of the gradient along the gradient",
    "effective_smoothness": "effective beta",
}
L_P = ("l1", "l2", "linf")
_SIMILAR_COSINE, _SIMILAR_DISTANCE, _AS_WELL = 0.05, 0.1, 0.1


def trains_better(results: xr.Dataset, norm: str, source: str, network: str) -> Claim:
    """A normalization's training loss is below the standard network's.

    Args:
        results: ``training_loss`` over (norm, seed, step).
        norm: that should be better.
        source: of the statement.
        network: its name in the claim.

    Returns:
        The claim.
    """
    text = f"{network} trains better with {NAMES[norm]} than without normalization"
    late = {name: _late_loss(results, name) for name in (norm, "none")}
    return compared(text, source, late[norm], late["none"], (NAMES[norm], NAMES["none"]))


def trains_as_well(results: xr.Dataset, norm: str, source: str, network: str) -> Claim:
    """A normalization's training loss is not above BatchNorm's by more than a tenth of its fall.

    Args:
        results: ``training_loss`` over (norm, seed, step).
        norm: that should do as well as BatchNorm.
        source: of the statement.
        network: its name in the claim.

    Returns:
        The claim.
    """
    text = f"{network} trains with the {NAMES[norm]} as well as with BatchNorm or better"
    late = {name: _late_loss(results, name) for name in (norm, "batch")}
    start = results["training_loss"].sel(norm="batch").isel(step=0)
    allowance = _AS_WELL * (start - late["batch"]).clip(min=0)
    names, note = (NAMES[norm], NAMES["batch"]), ""
    if "none" in results["norm"]:  # whether the standard network would pass as well
        bare = np.atleast_1d(_late_loss(results, "none").values)
        passes = is_below(bare, np.atleast_1d(late["batch"].values), allowance)
        note = f" (standard {spread(bare)}, as well in {passes.sum()} of {len(passes)} seeds)"
    return compared(text, source, late[norm], late["batch"], names, allowance=allowance, note=note)


def is_smoother(
    results: xr.Dataset, norm: str, source: str, network: str, second_half: bool
) -> list[Claim]:
    """Loss band, change of the gradient and beta are smaller than the standard network's.

    Args:
        results: the ray probes' variables over (norm, seed, step).
        norm: that should be smoother.
        source: of the statement.
        network: its name in the claim.
        second_half: whether to judge by the second half of the measured steps.

    Returns:
        A claim for each of the three.
    """
    high, low = results["loss_high"], results["loss_low"]
    widths = results.assign(loss_width=high - low.where(np.isfinite(high), 0))
    claims = []
    for variable, what in _LANDSCAPE.items():
        curves = _or_infinite(widths, variable)
        judged = weighted_median(_judged_steps(curves, second_half))
        note = _over_all(weighted_median(curves), norm) if second_half else ""
        text = f"{network}: the {what} is smaller with {NAMES[norm]}"
        left, right = judged.sel(norm=norm), judged.sel(norm="none")
        names = (NAMES[norm], NAMES["none"])
        claims.append(compared(text, source, left, right, names, note=note))
    return claims


def is_better_throughout(
    results: xr.Dataset, source: str, network: str, second_half: bool
) -> list[Claim]:
    """BatchNorm and each l_p normalization train better and are smoother than the standard network.

    Args:
        results: ``training_loss`` and the ray probes' variables over (norm, seed, step).
        source: of the statements.
        network: its name in the claim.
        second_half: whether to judge the landscape by the second half of the measured steps.

    Returns:
        Four claims for each normalization.
    """
    claims = []
    for norm in ("batch", *L_P):
        claims.append(trains_better(results, norm, source, network))
        claims += is_smoother(results, norm, source, network, second_half)
    return claims


def predicts_better(
    results: xr.Dataset, norm: str, source: str, network: str, second_half: bool
) -> Claim:
    """Gradients along the ray differ less from the first one than in the standard network.

    Args:
        results: ``gradient_distance`` over (norm, seed, step, distance).
        norm: whose gradients should be more predictive.
        source: of the statement.
        network: its name in the claim.
        second_half: whether to judge by the second half of the measured steps.

    Returns:
        The claim, about the mean over distances of the median over steps.
    """
    curves = _or_infinite(results, "gradient_distance")
    whole, typical = (
        weighted_median(steps).mean("distance", skipna=False)
        for steps in (curves, _judged_steps(curves, second_half))
    )
    note = _over_all(whole, norm) if second_half else ""
    text = f"{network}: gradients are more predictive with {NAMES[norm]} (l2 error smaller)"
    left, right = typical.sel(norm=norm), typical.sel(norm="none")
    return compared(text, source, left, right, (NAMES[norm], NAMES["none"]), note=note)


def shifts_no_less(results: xr.Dataset, source: str, network: str) -> list[Claim]:
    """BatchNorm's covariate shift is similar or worse: cosine not higher, l2 not lower.

    Args:
        results: ``shift_cosine`` and ``shift_distance`` over (norm, seed, step, layer).
        source: of the statement.
        network: its name in the claim.

    Returns:
        A claim for the cosine and one for the l2 difference.
    """
    later = results.sel(norm=["batch", "none"]).isel(layer=slice(1, None))
    cosine = weighted_mean(later["shift_cosine"], ("step", "layer"))
    distance = geometric_mean(later["shift_distance"], ("step", "layer"))
    allowance = _SIMILAR_DISTANCE * distance.sel(norm="none")
    stem = f"{network}: with BatchNorm the covariate shift is similar or worse"
    names = (NAMES["batch"], NAMES["none"])
    return [
        compared(
            f"{stem} (cosine not higher)",
            source,
            cosine.sel(norm="batch"),
            cosine.sel(norm="none"),
            names,
            allowance=_SIMILAR_COSINE,
            note=_left_out(later["shift_cosine"], 0),
        ),
        compared(
            f"{stem} (l2 difference not lower)",
            source,
            distance.sel(norm="none"),
            distance.sel(norm="batch"),
            names[::-1],
            allowance=allowance,
            note=_left_out(later["shift_distance"], int((later["shift_distance"] == 0).sum())),
        ),
    ]


def _late_loss(results: xr.Dataset, norm: str) -> xr.DataArray:
    """Return the mean loss over the last quarter; infinite if the run diverged before."""
    losses = results["training_loss"].sel(norm=norm)
    late = losses.isel(step=slice(-max(1, losses.sizes["step"] // 4), None))
    return late.mean("step", skipna=False).fillna(np.inf).where(losses.notnull().any("step"))


def _judged_steps(curves: xr.DataArray, second_half: bool) -> xr.DataArray:
    return curves.isel(step=slice(curves.sizes["step"] // 2 if second_half else 0, None))


def _over_all(whole: xr.DataArray, norm: str) -> str:
    values = (spread(np.atleast_1d(whole.sel(norm=name).values)) for name in (norm, "none"))
    return f" (over all steps: {' against '.join(values)})"


def _or_infinite(results: xr.Dataset, name: str) -> xr.DataArray:
    """Return a ray variable, infinite where it is not finite; NaN where a run did not measure it.

    A run that diverged counts as infinite if another run was measured.
    """
    values = results[name]
    losses = results.get("training_loss", values)
    measured, made = _in_runs(values.notnull()), _in_runs(losses.notnull())
    steps = next(
        name for name in losses.dims if str(name).endswith("step")
    )  # the tour has another name for it
    diverged = ~_in_runs(abs(losses.isel({steps: [-1]})) < np.inf)
    known = made & (measured | diverged) & measured.any()
    return values.where(np.isfinite(values) | ~known, np.inf)


def _in_runs(found: xr.DataArray) -> xr.DataArray:
    return found.any([name for name in found.dims if name not in ("norm", "seed")])


def _left_out(shift: xr.DataArray, zeros: int) -> str:
    """Return a note on the values that a mean leaves out; runs without any do not count."""
    measured = shift.notnull().any("layer")
    lost = measured.any(("norm", "seed")) & measured.any("step") & ~measured
    counts = {
        "steps without a number, as after a divergence": int(lost.sum()),
        "differences of zero": zeros,
    }
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    return f" (left out: {', '.join(parts)})" if parts else ""


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
