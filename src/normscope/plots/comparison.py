"""Comparison of normalizations on one model: learning rates, curvature, training."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normscope.plots.axes import logarithmic_axis, step_axis
from normscope.plots.style import INK, colour_of, marker_key, new_figure

_RATES = {"recommended": "D", "limit": "o", "curvature_bound": "|"}  # markers
_MODES = {"train": "o", "frozen": "s", "eval": "^"}


def comparison(results: xr.Dataset) -> Figure:
    """Draw three panels: rates with their interval, eigenvalues by mode, loss against step.

    Rates and eigenvalues are points on a logarithmic axis, one row per normalization, so that
    ratios can be read off.

    Args:
        results: as ``Comparison.to_xarray`` returns it.

    Returns:
        The figure.
    """
    figure = new_figure(width=11.0, height=1.9 + 0.42 * max(results.sizes["norm"], 3))
    rates, curvature, training = figure.subplots(1, 3, width_ratios=(1.1, 0.9, 1.0))
    _draw_rates(rates, results)
    _draw_curvature(curvature, results)
    _draw_training(training, results)
    return figure


def _draw_rates(axes: Axes, results: xr.Dataset) -> None:
    for height, norm in enumerate(results["norm"].values):
        row, colour = results.sel(norm=norm), colour_of(norm)
        low, high = float(row["low"]), float(row["high"])
        if np.isfinite(low) and np.isfinite(high):
            axes.plot([low, high], [height, height], color=colour, lw=7, alpha=0.25, zorder=1)
        for name, marker in _RATES.items():
            value = float(row[name])
            if np.isfinite(value):
                filled = "white" if name == "recommended" else colour
                size = 13 if marker == "|" else 7
                axes.plot(value, height, marker, ms=size, mfc=filled, mec=colour, mew=1.6)
    interval = Line2D([], [], color=INK, lw=7, alpha=0.25, label="interval of the limit")
    _name_rows(axes, results, "learning rate")
    _explain_markers(axes, _RATES, {"recommended"}, interval)


def _draw_curvature(axes: Axes, results: xr.Dataset) -> None:
    for height, norm in enumerate(results["norm"].values):
        values = results["lambda_max"].sel(norm=norm)
        found = values.where(np.isfinite(values), drop=True)
        if found.size > 1:
            span = [float(found.min()), float(found.max())]
            axes.plot(span, [height, height], color=colour_of(norm), lw=1.2, alpha=0.5, zorder=1)
        for mode in found["mode"].values:
            filled = colour_of(norm) if mode == "train" else "white"
            value = float(found.sel(mode=mode))
            axes.plot(value, height, _MODES[mode], ms=7, mfc=filled, mec=colour_of(norm), mew=1.6)
    _name_rows(axes, results, "largest eigenvalue")
    _explain_markers(axes, _MODES, {"frozen", "eval"})


def _draw_training(axes: Axes, results: xr.Dataset) -> None:
    for norm in results["norm"].values:
        loss = results["loss"].sel(norm=norm)
        axes.plot(np.arange(loss.sizes["step"]), loss, color=colour_of(norm), label=norm)
    step_axis(axes)
    axes.set_ylabel("training loss")
    axes.set_title("trained at half the limit", fontsize="medium")
    logarithmic_axis(axes, "y")
    axes.legend(frameon=False, fontsize="small")


def _name_rows(axes: Axes, results: xr.Dataset, label: str) -> None:
    """Label one row per normalization, the first on top, and make the axis logarithmic."""
    logarithmic_axis(axes, "x")
    axes.set_xlabel(label)
    axes.set_yticks(range(results.sizes["norm"]), [str(norm) for norm in results["norm"].values])
    axes.set_ylim(results.sizes["norm"] - 0.5, -0.5)
    axes.grid(axis="x", which="major", alpha=0.25)


def _explain_markers(axes: Axes, markers: dict[str, str], hollow: set[str], *more: Line2D) -> None:
    """Draw a legend of the markers above the panel, in a colour of no normalization."""
    handles = [
        marker_key(
            marker, name.replace("_", " "), mew=1.6, ms=7, mfc="white" if name in hollow else INK
        )
        for name, marker in markers.items()
    ]
    axes.legend(
        handles=[*handles, *more],
        frameon=False,
        fontsize="small",
        ncols=2 if more else len(handles),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
    )
