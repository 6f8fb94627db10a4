"""Training loss against depth, at the best learning rate and at each."""

from __future__ import annotations

import math

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import colour_of, new_figure

__all__ = ["trainability"]


def trainability(results: xr.Dataset) -> Figure:
    """Two panels: the best final loss by depth, and the plain nets' by learning rate.

    Args:
        results: as the experiment yang2019/trainability returns it.

    Returns:
        The figure.
    """
    figure = new_figure(9.6, 4.0)
    left, right = figure.subplots(1, 2, sharey=True)
    _by_depth(left, results)
    _by_learning_rate(right, results)
    for axes in (left, right):
        axes.axhline(math.log(results.attrs["classes"]), color="#777777", ls=":", label="guessing")
    left.legend(frameon=False, fontsize="small")
    # one curve per depth, all over the panel: there is no room among them
    right.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    left.set_ylabel("final training loss")
    return figure


def _by_depth(axes: Axes, results: xr.Dataset) -> None:
    depths = results["depth"].values
    for name in results["architecture"].values:
        norm, _, skip = str(name).partition(", ")
        colour, line = colour_of(norm), "--" if skip else "-"
        loss = results["best_loss"].sel(architecture=name)
        axes.fill_between(depths, loss.min("seed"), loss.max("seed"), color=colour, alpha=0.2, lw=0)
        axes.plot(depths, loss.mean("seed"), "o", ls=line, ms=4, color=colour, label=name)
    longer = results["longer_loss"].min("learning_rate").mean("seed")
    if longer.notnull().any():  # depths that did not train, with more steps
        label = f"batch, {results.attrs['longer']} times the steps"
        axes.plot(depths, longer, "x", ms=6, color=colour_of("batch"), label=label)
    axes.set_xlabel("depth")
    axes.set_title("at the best learning rate", fontsize="medium")


def _by_learning_rate(axes: Axes, results: xr.Dataset) -> None:
    rates = results["learning_rate"].values
    depths = results["depth"].values
    for place, depth in enumerate(depths):
        loss = results["loss"].sel(architecture="batch", depth=depth).mean("seed")
        strength = 0.25 + 0.75 * place / max(1, len(depths) - 1)
        axes.plot(
            rates,
            loss,
            "o-",
            ms=4,
            color=colour_of("batch"),
            alpha=strength,
            label=f"depth {depth}",
        )
    logarithmic_axis(axes, "x")
    axes.set_xlabel("learning rate")
    axes.set_title("plain, batch normalization", fontsize="medium")
