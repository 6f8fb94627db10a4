"""The stability gauge over a training: learning rate and sharpness against their thresholds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normscope.errors import StateError
from normscope.plots.axes import full_labels, logarithmic_axis, step_axis
from normscope.plots.labels import add_values
from normscope.plots.names import quantity_name
from normscope.plots.style import legend_below, lone_marker, new_axes, new_figure

THRESHOLDS = {
    "critical_rate": ("learning_rate",),
    "directional_sharpness": ("directional_threshold",),
    "sharpness": ("sharpness_threshold",),
    "preconditioned_sharpness": ("preconditioned_threshold",),
    "batch_sharpness": ("batch_threshold_small", "batch_threshold_large"),
}
"""The quantities of the probe ``stability``, and what each is compared with."""

_RECENT = 5  # measurements whose median the headline gives: one batch is noisy
_COLOUR, _EDGE = "#0072B2", "#D55E00"
_DASHES = ("--", ":")
_WIDE = 30.0  # ratio of values from which on an axis is logarithmic
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


def threshold_lines(results: xr.Dataset, name: str, axes: Axes) -> None:
    """Draw what a quantity is compared with, as dashed lines with a legend.

    Args:
        results: of a scope.
        name: of the quantity.
        axes: of its panel.
    """
    for threshold, dashes in zip(THRESHOLDS.get(name, ()), _DASHES, strict=False):
        if threshold in results and bool(results[threshold].notnull().any()):
            known = results[threshold].dropna("step")
            axes.plot(
                known["step"].values,
                known.values,
                color=_EDGE,
                ls=dashes,
                lw=1.2,
                marker=lone_marker(known),
                label=quantity_name(threshold),
            )
            axes.legend(frameon=False, fontsize="x-small")


def gauge_panel(results: xr.Dataset, name: str, axes: Axes | None = None) -> Axes:
    """Draw one quantity of the gauge over steps with its thresholds.

    Args:
        results: of a scope with the probe ``stability``.
        name: of the quantity.
        axes: to draw on; None for a new figure.

    Returns:
        The axes drawn on.
    """
    axes = new_axes(axes)
    known = results[name].dropna("step")
    axes.plot(known["step"].values, known.values, ".-", color=_COLOUR, lw=1, ms=3)
    add_values(axes, known["step"].values, known.values, ("step", quantity_name(name)))
    threshold_lines(results, name, axes)
    full_labels(axes)
    shown = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines])
    shown = shown[np.isfinite(shown)]
    if shown.size and shown.min() > 0 and shown.max() > _WIDE * shown.min():
        logarithmic_axis(axes, "y")
    step_axis(axes)
    axes.set_title(quantity_name(name), fontsize="medium")
    return axes


def stability_gauge(results: xr.Dataset) -> Figure:
    """Draw the gauge over a training, one panel for each quantity with its thresholds.

    Args:
        results: of a scope with the probe ``stability``.

    Returns:
        The figure, with the headline above the panels.

    Raises:
        StateError: if nothing of it was measured.
    """
    shown = [name for name in THRESHOLDS if name in results and bool(results[name].notnull().any())]
    if not shown:
        raise StateError("there is no gauge to draw: give the scope the probe 'stability'.")
    figure = new_figure(3.4 * len(shown), 3.0)
    panels = figure.subplots(1, len(shown), squeeze=False).ravel()
    for axes, name in zip(panels, shown, strict=True):
        gauge_panel(results, name, axes)
    figure.suptitle(stability_headline(results), fontsize="medium")
    return figure


def edge_figure(results: xr.Dataset, name: str, thresholds: Mapping[str, str]) -> Figure:
    """Draw a sharpness over steps with its thresholds, a panel for each training.

    Args:
        results: over ``run`` and ``step``.
        name: of the sharpness.
        thresholds: the thresholds with their formulas in words.

    Returns:
        The figure.
    """
    runs = results["run"].values
    figure = new_figure(3.2 * len(runs), 3.2)
    panels = figure.subplots(1, len(runs), squeeze=False).ravel()
    for axes, run in zip(panels, runs, strict=True):
        one = results.sel(run=run)
        known = one[name].dropna("step")
        axes.plot(known["step"].values, known.values, ".-", color=_COLOUR, lw=1, ms=3)
        for (threshold, words), dashes in zip(thresholds.items(), _DASHES, strict=False):
            edge = one[threshold].dropna("step")
            axes.plot(edge["step"].values, edge.values, color=_EDGE, ls=dashes, lw=1.2, label=words)
        step_axis(axes)
        nearest = min(float(one[threshold].max()) for threshold in thresholds)
        largest = float(known.max()) if known.size else nearest
        axes.set_ylim(0, 1.2 * max(largest, nearest))  # a far threshold would flatten the curve
        axes.set_title("\n".join(textwrap.wrap(str(run), 30)), fontsize="medium")
    panels[0].set_ylabel(quantity_name(name))
    legend_below(figure, panels[0])
    return figure
