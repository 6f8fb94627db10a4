"""One net under several normalizations: learning rates, curvature, training."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.style import colour_of, new_figure

_HATCHES = {"train": "", "frozen": "//", "eval": ".."}


def comparison(results: xr.Dataset) -> Figure:
    """Draw three panels: rates with their interval, eigenvalues by mode, loss against step.

    Args:
        results: as ``Comparison.to_xarray`` returns it.

    Returns:
        The figure.
    """
    figure = new_figure(width=11.0, height=3.6)
    rates, curvature, training = figure.subplots(1, 3)
    _draw_rates(rates, results)
    _draw_curvature(curvature, results)
    for norm in results["norm"].values:
        loss = results["loss"].sel(norm=norm)
        training.plot(np.arange(loss.sizes["step"]), loss, color=colour_of(norm), label=norm)
    training.set_xlabel("step")
    training.set_ylabel("training loss")
    training.set_title("at half the limit")
    training.set_yscale("log")
    training.legend(frameon=False)
    return figure


def _draw_rates(axes: Axes, results: xr.Dataset) -> None:
    for place, norm in enumerate(results["norm"].values):
        row, colour = results.sel(norm=norm), colour_of(norm)
        low, high = float(row["low"]), float(row["high"])
        if np.isfinite(high):
            axes.plot([place, place], [low, high], color=colour, lw=6, alpha=0.3)
        axes.plot(place, float(row["limit"]), "o", color=colour)
        axes.plot(place, float(row["safe"]), "_", color=colour, markersize=16)
    axes.set_xticks(range(results.sizes["norm"]), list(results["norm"].values))
    axes.set_yscale("log")
    axes.set_ylabel("learning rate")
    axes.set_title("limit (dot) and safe (dash)")


def _draw_curvature(axes: Axes, results: xr.Dataset) -> None:
    modes = [str(mode) for mode in results["mode"].values]
    width = 0.8 / len(modes)
    for shift, mode in enumerate(modes):
        values = results["lambda_max"].sel(mode=mode).values
        places = np.arange(len(values)) + (shift - 1) * width
        colours = [colour_of(norm) for norm in results["norm"].values]
        axes.bar(
            places,
            values,
            width,
            color=colours,
            hatch=_HATCHES[mode],
            edgecolor="white",
            label=mode,
        )
    axes.set_xticks(range(results.sizes["norm"]), list(results["norm"].values))
    axes.set_yscale("log")
    axes.set_ylabel("largest eigenvalue")
    axes.set_title(", ".join(modes))
