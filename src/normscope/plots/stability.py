"""The stability gauge over a training: learning rate and sharpness against their thresholds."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.errors import StateError
from normscope.plots.axes import full_labels, logarithmic_axis, step_axis
from normscope.plots.edge_of_stability import THRESHOLDS, stability_headline
from normscope.plots.labels import add_values
from normscope.plots.names import quantity_name
from normscope.plots.style import legend_below, lone_marker, new_axes, new_figure

_COLOUR, _EDGE = "#0072B2", "#D55E00"
_DASHES = ("--", ":")
_WIDE = 30.0  # ratio of values from which on an axis is logarithmic


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
