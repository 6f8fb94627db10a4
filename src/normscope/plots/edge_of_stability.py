"""How far a training is from the edge of stability, as a number and in words; no matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normscope.plots.names import quantity_name

THRESHOLDS = {
    "critical_rate": ("learning_rate",),
    "directional_sharpness": ("directional_threshold",),
    "sharpness": ("sharpness_threshold",),
    "preconditioned_sharpness": ("preconditioned_threshold",),
    "batch_sharpness": ("batch_threshold_small", "batch_threshold_large"),
}
"""The quantities of the probe ``stability``, and what each is compared with."""

_RECENT = 5  # measurements whose median the headline gives: one batch is noisy
_SHARPNESSES = ("sharpness", "preconditioned_sharpness", "batch_sharpness")


def stability_headline(results: xr.Dataset) -> str:
    """Return in words how far a training is from the edge; empty if it was not measured.

    The edge is the nearer one of the critical rate, at which the next step stops lowering the loss,
    and of those that the sharpness and the preconditioned sharpness give, if they were measured.
    An update along which the loss rises at any rate, as momentum and weight decay make them in a
    stable training, has no critical rate: without a sharpness there is no edge to name.

    Args:
        results: of a scope with the probe ``stability``. The numbers are medians over the last
            five measured steps.

    >>> rates = {"critical_rate": ("step", [0.14]), "stability_distance": ("step", [1.4])}
    >>> stability_headline(xr.Dataset(rates))
    'at 0.71 of the edge; would be unstable from 0.14 on'
    """
    if "stability_distance" not in results:
        return ""
    parts = _distance_words(results)
    if _loss_failed(results):
        before = [f"before, {parts[0]}", *parts[1:]] if parts else []
        return "; ".join(["the loss is not finite", *before])
    last = results["stability_distance"].dropna("step")
    if parts and "step" in results.coords and last["step"][-1] != results["step"][-1]:
        parts.append(f"last measured at step {int(last['step'][-1])}")
    return "; ".join(parts)


def edge_share(results: xr.Dataset) -> float:
    """Return the learning rate over the nearest edge of `stability_headline`; above 1, beyond it.

    Args:
        results: of a scope with the probe ``stability``.

    Returns:
        NaN if no edge was measured; infinity if the last loss is not finite.

    >>> edge_share(xr.Dataset({"stability_distance": ("step", [4.0, 2.0, 3.0])}))
    0.3333333333333333
    """
    return float("inf") if _loss_failed(results) else _measured_share(results)


def _measured_share(results: xr.Dataset) -> float:
    """Return the share by the last measured values."""
    shares = [value / edge for value, edge in _eigenvalue_edges(results)]
    return max(
        [each for each in (_update_share(results), *shares) if not np.isnan(each)] or [np.nan]
    )


def _distance_words(results: xr.Dataset) -> list[str]:
    """Return the share of the edge and the measured sharpnesses, by the last measured values."""
    if not _last_known(results, "stability_distance").size:
        return []
    share, along_update = _measured_share(results), _update_share(results)
    if np.isnan(share):
        text = "recent updates do not lower the loss of their batch: no critical rate"
        return [text, *_comparisons(results)]
    rate = _recent(results, "learning_rate") / share
    if share == along_update:
        rate = _recent(results, "critical_rate")
    if share == along_update and np.isinf(_recent(results, "critical_rate_error")):
        text = f"at most {share:.2g} of the edge; no instability up to {rate:.2g}"
    else:
        text = f"at {share:.2g} of the edge; {'would be ' if share <= 1 else ''}unstable"
        text += "" if np.isnan(rate) else f" from {rate:.2g} on"
    return [text, *_comparisons(results)]


def _update_share(results: xr.Dataset) -> float:
    """Return the learning rate over the critical rate; NaN if updates have none.

    Momentum turns the update uphill over a few steps, so that distances between 0 and 1 come with
    those that are 0: neither is instability.
    """
    distances = _last_known(results, "stability_distance")
    middle = float(np.median(distances)) if distances.size else np.nan
    if np.isnan(middle) or (middle < 1 and distances.min() == 0):
        return np.nan
    return 1 / middle


def _loss_failed(results: xr.Dataset) -> bool:
    """Return whether the last loss is not finite."""
    losses = results["loss"].values if "loss" in results else np.zeros(0)
    return losses.size > 0 and not np.isfinite(losses[-1]).all()


def _eigenvalue_edges(results: xr.Dataset) -> list[tuple[float, float]]:
    """Return the eigenvalues of one edge each, with that edge."""
    pairs = [
        (_recent(results, name), _recent(results, THRESHOLDS[name][0]))
        for name in ("sharpness", "preconditioned_sharpness")
    ]
    return [(value, edge) for value, edge in pairs if value > 0 and edge > 0]


def _last_known(results: xr.Dataset, name: str) -> NDArray[Any]:
    """Return the last measured values."""
    values = results[name].values if name in results else np.zeros(0)
    return values[~np.isnan(values)][-_RECENT:]


def _recent(results: xr.Dataset, name: str) -> float:
    """Return the median of the last measured values; NaN if there are none."""
    known = _last_known(results, name)
    return float(np.median(known)) if known.size else float("nan")


def _comparisons(results: xr.Dataset) -> list[str]:
    """Return each measured sharpness with its thresholds, in words."""
    found = []
    for name in _SHARPNESSES:
        value = _recent(results, name)
        limits = sorted({_recent(results, each) for each in THRESHOLDS[name]})
        limits = [each for each in limits if not np.isnan(each)]
        if not np.isnan(value) and limits:
            known = " to ".join(f"{each:.3g}" for each in limits)
            found.append(f"{quantity_name(name)} {value:.3g} (edge {known})")
    return found
