"""Largest eigenvalue and learning rate over gamma: theory as lines, measurements as points."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import colour_of, lone_marker, new_figure
from normscope.plots.unanswered import say_unanswered

_DASHES = {"train": "-", "frozen": "--", "printed": ":"}
_MARKS = {"train": "o", "frozen": "s"}
_LABELS = {
    "lambda_max": r"$\lambda_{\max}$",
    "max_learning_rate": r"$\eta_*$",
}
_TITLES = {"fully_connected": "fully connected", "conv_net": "convolutional"}


def closure_curves(results: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw ``lambda_max`` (closure, gamma), one line per closure.

    Args:
        results: a data set with these dimensions.
        axes: where to draw; None for a new figure.

    Returns:
        The axes drawn on.
    """
    axes = new_figure().subplots() if axes is None else axes
    axes.set_xlabel(r"$\gamma$")
    axes.set_ylabel(rf"{_LABELS['lambda_max']} of the Fisher matrix")
    axes.set_title("mean-field theory")
    drawn = results["lambda_max"].dropna("closure", how="all")  # the others have no answer
    if not drawn.size:
        say_unanswered(axes, results.attrs.get("reason"))
        return axes
    _draw_theory(axes, drawn)
    logarithmic_axis(axes, "y")
    axes.legend(frameon=False)
    return axes


def figure_one(results: xr.Dataset) -> Figure:
    """Draw the four panels of Figure 1: eigenvalue and learning rate of two architectures.

    Reference: wei2018, Figure 1.

    Args:
        results: as ``normscope.experiments.wei2018.figure1.figure1`` returns it.

    Returns:
        The figure; red with BatchNorm, black without, a line style for each closure and a point
        for each measured network.
    """
    figure = new_figure(width=9.6, height=6.8)
    architectures = [str(name) for name in results["architecture"].values]
    panels = figure.subplots(len(architectures), 2, squeeze=False)
    for row, name in enumerate(architectures):
        for axes, quantity in zip(panels[row], _LABELS, strict=True):
            _draw_panel(axes, results.sel(architecture=name), quantity)
            letter = "abcd"[2 * row + list(_LABELS).index(quantity)]
            axes.set_title(f"({letter}) {_TITLES.get(name, name)}", loc="left")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_panel(axes: Axes, results: xr.Dataset, quantity: str) -> None:
    _draw_theory(axes, results[quantity], "BatchNorm, ")
    without = results[f"{quantity}_without"]
    for closure in without["closure_without"].values:
        name, value = str(closure), float(without.sel(closure_without=closure))
        dashes = _DASHES[name]
        label = "no norm, printed" if name == "printed" else "no norm, corrected"
        axes.axhline(value, color=colour_of("none"), linestyle=dashes, lw=1.2, label=label)
    _draw_measured(axes, results, quantity)
    logarithmic_axis(axes, "y")
    axes.set_xlabel(r"$\gamma$")
    axes.set_ylabel(_LABELS[quantity])


def _draw_theory(axes: Axes, curves: xr.DataArray, before: str = "") -> None:
    style: dict[str, Any] = {"color": colour_of("batch"), "marker": lone_marker(curves["gamma"])}
    for closure in curves["closure"].values:
        name = str(closure)
        line = curves.sel(closure=closure)
        axes.plot(line["gamma"], line, _DASHES[name], label=f"{before}{name}", **style)


def _draw_measured(axes: Axes, results: xr.Dataset, quantity: str) -> None:
    """Points for each mode and seed; the network without normalization stands at the right end."""
    for mode in results["mode"].values:
        points = results[f"{quantity}_measured"].sel(mode=mode)
        gamma = np.repeat(points["measured_gamma"].values, points.sizes["seed"])
        values = points.transpose("measured_gamma", "seed").values.ravel()
        style: dict[str, Any] = {"color": colour_of("batch"), "ms": 5, "mfc": "none"}
        axes.plot(gamma, values, _MARKS[str(mode)], label=f"measured, {mode}", **style)
    alone = results[f"{quantity}_measured_without"].values
    edge = np.full(alone.shape, float(results["gamma"].max()))
    style = {"color": colour_of("none"), "ms": 5, "mfc": "none"}
    axes.plot(edge, alone, "D", label="measured, no norm", **style)
