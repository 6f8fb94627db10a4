"""Claims about training, landscape, covariate shift and activations; `judging` has the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from normscope.plots.names import name_of
from normscope.results import Claim

L_P = ("l1", "l2", "linf")
NAMES = {norm: name_of(norm) for norm in ("batch", "noisy", *L_P)} | {"none": "standard"}
_LANDSCAPE = {
    "loss_width": "variation of the loss along the gradient",
    "gradient_distance_high": "change of the gradient along the gradient",
    "effective_smoothness": "roughness (beta)",
}
VGG = "VGG"  # short trainings are judged by the second half of the measured steps; see `judging`
_SHORT = 1_000  # steps of VGG
_LATE = "training loss, mean over the last quarter of the measured steps"
_SIMILAR_COSINE, _SIMILAR_DISTANCE, _AS_WELL = 0.05, 0.1, 0.1


def trains_better(
    results: xr.Dataset, source: str, network: str, norms: Sequence[str] = ("batch",)
) -> list[Claim]:
    """Training losses are below the standard network's.

    Args:
        results: ``training_loss`` over (norm, seed, step).
        source: of the statement.
        network: its name in the claim.
        norms: that should be better.

    Returns:
        A claim for each normalization.
    """
    late = _late_loss(results)
    end = "than without normalization"
    return [
        _smaller(
            f"{network} trains better with {NAMES[norm]} {end}", source, late, norm, statistic=_LATE
        )
        for norm in norms
    ]


def trains_as_well(results: xr.Dataset, source: str, network: str) -> list[Claim]:
    """Training losses of l_p norms are not above BatchNorm's by more than a tenth of its fall.

    Args:
        results: ``training_loss`` over (norm, seed, step).
        source: of the statement.
        network: its name in the claim.

    Returns:
        A claim for each l_p normalization.
    """
    late = _late_loss(results)
    batch = late.sel(norm="batch")
    start = results["training_loss"].sel(norm="batch").isel(step=0)
    allowance, note = _AS_WELL * (start - batch).clip(min=0), ""
    if "none" in results["norm"]:  # whether the standard network would pass as well
        bare = np.atleast_1d(late.sel(norm="none").values)
        passes = is_below(bare, np.atleast_1d(batch.values), allowance)
        note = f" (standard {spread(bare)}, as well in {passes.sum()} of {len(passes)} seeds)"
    end = "as well as with BatchNorm or better"
    more = {"allowance": allowance, "note": note}
    more["statistic"] = f"{_LATE}; a tenth of the loss that BatchNorm sheds is allowed"
    return [
        _smaller(
            f"{network} trains with the {NAMES[norm]} {end}", source, late, norm, "batch", **more
        )
        for norm in L_P
    ]


def is_smoother(results: xr.Dataset, source: str, network: str, norm: str = "batch") -> list[Claim]:
    """Loss band, change of the gradient and beta are smaller than the standard network's.

    Args:
        results: the ray probes' variables over (norm, seed, step).
        source: of the statement.
        network: its name in the claim; VGG is judged by the second half of the measured steps.
        norm: that should be smoother.

    Returns:
        A claim for each of the three.
    """
    high, low = results["loss_high"], results["loss_low"]
    widths = results.assign(loss_width=high - low.where(np.isfinite(high), 0))
    claims = []
    for variable, what in _LANDSCAPE.items():
        curves = _or_infinite(widths, variable)
        judged = weighted_median(_judged_steps(curves, network))
        note = _over_all(weighted_median(curves), norm) if _is_short(curves, network) else ""
        text = f"{network}: the {what} is smaller with {NAMES[norm]}"
        statistic = f"{what}, {_which_steps(curves, network)}"
        claims.append(_smaller(text, source, judged, norm, note=note, statistic=statistic))
    return claims


def is_better_throughout(results: xr.Dataset, source: str, network: str) -> list[Claim]:
    """BatchNorm and each l_p normalization train better and are smoother than the standard network.

    Args:
        results: ``training_loss`` and the ray probes' variables over (norm, seed, step).
        source: of the statements.
        network: its name in the claim.

    Returns:
        Four claims for each normalization.
    """
    claims = []
    for norm in ("batch", *L_P):
        claims += trains_better(results, source, network, [norm])
        claims += is_smoother(results, source, network, norm)
    return claims


def predicts_better(results: xr.Dataset, source: str, network: str) -> list[Claim]:
    """With BatchNorm gradients along the ray differ less from the first one.

    Args:
        results: ``gradient_distance`` over (norm, seed, step, distance).
        source: of the statement.
        network: its name in the claim; VGG is judged by the second half of the measured steps.

    Returns:
        One claim, about the mean over distances of the median over steps.
    """
    curves = _or_infinite(results, "gradient_distance")
    whole, typical = (
        weighted_median(steps).mean("distance", skipna=False)
        for steps in (curves, _judged_steps(curves, network))
    )
    note = _over_all(whole, "batch") if _is_short(curves, network) else ""
    text = f"{network}: gradients are more predictive with {NAMES['batch']} (l2 error smaller)"
    statistic = f"l2 change of the gradient, mean over distances, {_which_steps(curves, network)}"
    return [_smaller(text, source, typical, "batch", note=note, statistic=statistic)]


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
    pooled = "over measured steps and all layers but the first"
    allowed = {
        "allowance": _SIMILAR_DISTANCE * distance.sel(norm="none"),
        "statistic": f"l2 difference, geometric mean {pooled}; BatchNorm may be a tenth lower",
    }
    stem = f"{network}: with BatchNorm the covariate shift is similar or worse"
    zeros = int((later["shift_distance"] == 0).sum())
    lost, lost_distances = (
        _left_out(later["shift_cosine"], 0),
        _left_out(later["shift_distance"], zeros),
    )
    higher, lower = f"{stem} (cosine not higher)", f"{stem} (l2 difference not lower)"
    return [
        _smaller(
            higher,
            source,
            cosine,
            "batch",
            allowance=_SIMILAR_COSINE,
            note=lost,
            statistic=f"cosine, mean {pooled}; BatchNorm may be {_SIMILAR_COSINE:g} higher",
        ),
        _smaller(lower, source, distance, "none", "batch", note=lost_distances, **allowed),
    ]


def changes_moments_more(results: xr.Dataset, source: str, _network: str) -> list[Claim]:
    """With noisy BatchNorm mean and variance of activations change more from step to step.

    Args:
        results: the moments' changes over (norm, seed, step, layer, unit).
        source: of the statement.

    Returns:
        A claim for the mean and one for the variance.
    """
    claims = []
    for moment in ("mean", "variance"):
        change = weighted_median(results[f"activation_{moment}_change"], ("step", "layer", "unit"))
        text = f"the {moment} of activations changes more between steps with {NAMES['noisy']}"
        statistic = f"change of the {moment} in one step, median over units, layers and steps"
        claims.append(_smaller(text, source, change, "none", "noisy", statistic=statistic))
    return claims


def drifts_more(results: xr.Dataset, source: str, _network: str) -> list[Claim]:
    r"""With l_p norms activations move further from their first distribution.

    .. math:: \sqrt{(\mu_t - \mu_0)^2 + (\sigma_t - \sigma_0)^2}

    the 2-Wasserstein distance of normal distributions with these moments.

    Args:
        results: ``activation_mean`` and ``activation_variance``, as in `changes_moments_more`.
        source: of the statement.

    Returns:
        A claim for each l_p normalization.
    """
    mean, deviation = results["activation_mean"], results["activation_variance"] ** 0.5
    squares = (mean - mean.isel(step=0)) ** 2 + (deviation - deviation.isel(step=0)) ** 2
    moved = (squares**0.5).isel(step=slice(1, None))
    drift = weighted_median(moved, ("step", "layer", "unit"))
    text = "the distribution of activations shifts more over training with the"
    statistic = "2-Wasserstein distance from the first step, median over units, layers and steps"
    return [
        _smaller(f"{text} {NAMES[norm]}", source, drift, "none", norm, statistic=statistic)
        for norm in L_P
    ]


def _smaller(
    text: str, source: str, values: xr.DataArray, norm: str, other: str = "none", **options: Any
) -> Claim:
    """Return the claim that a value is smaller with one normalization than with another."""
    names = NAMES[norm], NAMES[other]
    return compared(text, source, values.sel(norm=norm), values.sel(norm=other), names, **options)


def _late_loss(results: xr.Dataset) -> xr.DataArray:
    """Return the mean loss over the last quarter; infinite if the run diverged before."""
    losses = results["training_loss"]
    late = losses.isel(step=slice(-max(1, losses.sizes["step"] // 4), None))
    return late.mean("step", skipna=False).fillna(np.inf).where(losses.notnull().any("step"))


def _is_short(curves: xr.DataArray, network: str) -> bool:
    """Return whether a training of VGG is so short that its plateau counts."""
    return network == VGG and bool(curves["step"].max() < _SHORT)


def _judged_steps(curves: xr.DataArray, network: str) -> xr.DataArray:
    first = curves.sizes["step"] // 2 if _is_short(curves, network) else 0
    return curves.isel(step=slice(first, None))


def _which_steps(curves: xr.DataArray, network: str) -> str:
    part = "the second half of the measured steps" if _is_short(curves, network) else "all of them"
    return f"median over steps ({part})" if network == VGG else "median over all measured steps"


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
