"""Training loss against step: one panel per learning rate, one line per normalization."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.style import colour_of, new_figure


def training_curves(results: xr.Dataset) -> Figure:
    """Draw ``loss`` (norm, learning_rate, seed, step), every seed a line.

    Args:
        results: a data set as ``normscope.experiments.first_look`` returns it.

    Returns:
        A figure with one panel per learning rate, sharing a logarithmic loss axis.
    """
    rates = results["learning_rate"].values
    figure = new_figure(width=3.4 * len(rates) + 0.6, height=3.4)
    panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
    for axes, rate in zip(panels, rates, strict=True):
        draw_losses(axes, results.sel(learning_rate=rate))
        axes.set_title(f"learning rate {rate:g}")
        axes.set_xlabel("step")
    panels[0].set_ylabel("training loss")
    panels[0].legend(frameon=False)
    return figure


def draw_losses(axes: Axes, results: xr.Dataset) -> None:
    """Draw one panel: a line for every seed, ending in a cross where the run diverged."""
    for norm in results["norm"].values:
        for number, seed in enumerate(results["seed"].values):
            run = results.sel(norm=norm, seed=seed)
            loss = run["loss"].where(np.isfinite(run["loss"]), drop=True)
            label = str(norm) if number == 0 else None
            line: dict[str, Any] = {"color": colour_of(str(norm)), "linewidth": 1.0, "alpha": 0.8}
            axes.plot(loss["step"], loss, label=label, **line)
            if run["outcome"] == "diverged":
                axes.plot(loss["step"][-1:], loss[-1:], "x", markersize=8, **line)
    axes.set_yscale("log")
