"""Predictions of the mean-field theory: order parameters by layer, eigenvalues over gamma."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import (
    CLOSURE_DASHES,
    colour_of,
    legend_below,
    lone_marker,
    new_axes,
    new_figure,
)

_MARKS = {"train": "o", "frozen": "s"}
_LABELS = {
    "lambda_max": r"$\lambda_{\max}$",
    "max_learning_rate": r"$\eta_*$",
}
_TITLES = {"fully_connected": "fully connected", "conv_net": "convolutional"}
_TERM, _GRADIENT = "#0072B2", "#D55E00"
_HEADROOM = 1.08  # height of the frame over the highest bar or marker
_LETTER, _LINE = 0.62, 1.6  # width of a letter and of a slanted line, in font sizes
_SIZE = 10.0  # font size in points


def order_parameters(results: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw each layer's term of the bound and squared gradient; over a sweep, lambda_max.

    Args:
        results: as ``Prediction.to_xarray`` returns it; a sweep has a dimension gamma.
        axes: to draw on; None for a new figure.

    Returns:
        The axes drawn on.
    """
    axes = new_axes(axes)
    if "gamma" in results.dims:
        _draw_sweep(axes, results)
    else:
        _draw_layers(axes, results)
    axes.set_title(f"mean-field theory, {results.attrs['closure']}")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    return axes


def _draw_layers(axes: Axes, results: xr.Dataset) -> None:
    x = np.arange(results.sizes["layer"])
    axes.bar(x, results["term"], color=_TERM, label="term of the bound, $f_l$")
    axes.plot(x, results["gradient"], "o-", color=_GRADIENT, label="squared gradient")
    axes.set(xlabel="layer", ylabel="term, squared gradient")
    _name_layers(axes, [str(name) for name in results["layer"].values])
    _scale_heights(axes, max(float(results[name].max()) for name in ("term", "gradient")))


def _scale_heights(axes: Axes, largest: float) -> None:
    """Set the limits from zero to somewhat above the largest value, as symlog has no margin."""
    axes.set_yscale("symlog", linthresh=max(largest * 1e-4, 1e-9))
    scale = axes.yaxis.get_transform()
    top = scale.inverted().transform([_HEADROOM * float(scale.transform([largest])[0])])
    axes.set_ylim(0, float(top[0]))


def _name_layers(axes: Axes, names: list[str]) -> None:
    """Label the layers, slanted if the names do not fit, and not all of them if they are many."""
    width = axes.get_window_extent().width * 72 / axes.figure.dpi
    slanted = len(names) * (max(map(len, names)) * _LETTER + 1) * _SIZE > width
    every = math.ceil(len(names) * _LINE * _SIZE / width) if slanted else 1
    x = np.arange(len(names))
    axes.set_xticks(x, minor=True)
    style: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(x[::every], names[::every], **(style if slanted else {}))


def _draw_sweep(axes: Axes, results: xr.Dataset) -> None:
    axes.set(xlabel=r"$\gamma$", ylabel="eigenvalue of the Fisher matrix")
    known = results.where(results["lambda_max"].notnull())  # elsewhere the bound is rounding error
    gamma = results["gamma"].values
    if not bool(known["lambda_max"].notnull().any()):
        axes.set_xlim(gamma.min() - 0.5, gamma.max() + 0.5)
        _write_reason(axes, results.attrs.get("reason"))
        return
    marker = lone_marker(gamma)
    axes.plot(gamma, known["lambda_max"], color=_TERM, marker=marker, label=r"$\lambda_{\max}$")
    ring: dict[str, Any] = {"marker": marker, "ms": 10, "mfc": "none", "color": _GRADIENT}
    axes.plot(gamma, known["lower_bound"], "--", label="lower bound, per output", **ring)
    logarithmic_axis(axes, "y")


def closure_curves(results: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw ``lambda_max`` (closure, gamma), one line per closure.

    Args:
        results: a dataset with these dimensions.
        axes: to draw on; None for a new figure.

    Returns:
        The axes drawn on.
    """
    axes = new_axes(axes)
    axes.set(xlabel=r"$\gamma$", ylabel=rf"{_LABELS['lambda_max']} of the Fisher matrix")
    axes.set_title("mean-field theory")
    drawn = results["lambda_max"].dropna("closure", how="all")
    if not drawn.size:
        _write_reason(axes, results.attrs.get("reason"))
        return axes
    _draw_theory(axes, drawn)
    logarithmic_axis(axes, "y")
    axes.legend(frameon=False)
    return axes


def _write_reason(axes: Axes, reason: object) -> None:
    """Write into empty axes that the theory has no answer, and why.

    Args:
        axes: nothing is drawn on.
        reason: one string, or a list with one for each setting; the first sentence is shown.
    """
    text = str(reason[0] if isinstance(reason, list) and reason else reason or "")
    first = text.partition(". ")[0].rstrip(".")
    words = f"The theory has no answer: {first}." if first else "The theory has no answer."
    lines = textwrap.fill(words, 48)
    axes.text(0.5, 0.5, lines, ha="center", va="center", transform=axes.transAxes)
    axes.set_yticks([])


def figure_one(results: xr.Dataset) -> Figure:
    """Draw the four panels of Figure 1: eigenvalue and learning rate of two architectures.

    Reference: wei2018, Figure 1.

    Args:
        results: as the experiment wei2018/figure1 returns it.

    Returns:
        The figure; red with BatchNorm, black without, a line style for each closure and a point
        for each measured network.
    """
    figure = new_figure(width=9.6, height=6.8)
    architectures = [str(name) for name in results["architecture"].values]
    panels = figure.subplots(len(architectures), 2, squeeze=False)
    for row, name in enumerate(architectures):
        for column, quantity in enumerate(_LABELS):
            axes = panels[row][column]
            _draw_panel(axes, results.sel(architecture=name), quantity)
            axes.set_title(f"({'abcd'[2 * row + column]}) {_TITLES.get(name, name)}", loc="left")
    legend_below(figure, panels[0][0])
    return figure


def _draw_panel(axes: Axes, results: xr.Dataset, quantity: str) -> None:
    _draw_theory(axes, results[quantity], "BatchNorm, ")
    without = results[f"{quantity}_without"]
    for closure in without["closure_without"].values:
        name, value = str(closure), float(without.sel(closure_without=closure))
        dashes = CLOSURE_DASHES[name]
        label = "no norm, printed" if name == "printed" else "no norm, corrected"
        axes.axhline(value, color=colour_of("none"), linestyle=dashes, lw=1.2, label=label)
    _draw_measured(axes, results, quantity)
    logarithmic_axis(axes, "y")
    axes.set(xlabel=r"$\gamma$", ylabel=_LABELS[quantity])


def _draw_theory(axes: Axes, curves: xr.DataArray, prefix: str = "") -> None:
    style: dict[str, Any] = {"color": colour_of("batch"), "marker": lone_marker(curves["gamma"])}
    for closure in map(str, curves["closure"].values):
        line = curves.sel(closure=closure)
        axes.plot(line["gamma"], line, CLOSURE_DASHES[closure], label=f"{prefix}{closure}", **style)


def _draw_measured(axes: Axes, results: xr.Dataset, quantity: str) -> None:
    """Draw a point for each mode and seed; the network without normalization at the right end."""
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
