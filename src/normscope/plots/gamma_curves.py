"""Learning curves for several initial gammas: one column per model."""

from __future__ import annotations

import matplotlib
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import new_figure

__all__ = ["gamma_curves"]


def gamma_curves(results: xr.Dataset) -> Figure:
    """Draw training loss over steps and test accuracy over epochs: mean and range of the seeds.

    A curve ends where one of its seeds has diverged.

    Reference: wei2018, Figure 4.

    Args:
        results: ``loss`` (model, gamma, seed, step), ``test_accuracy_by_epoch`` (model, gamma,
            seed, epoch).

    Returns:
        The figure; a colour for each gamma.
    """
    models = [str(name) for name in results["model"].values]
    figure = new_figure(width=4.8 * len(models), height=6.0)
    panels = figure.subplots(2, len(models), squeeze=False)
    for column, model in enumerate(models):
        upper, lower = panels[0][column], panels[1][column]
        _curves(upper, results["loss"].sel(model=model))
        _curves(lower, results["test_accuracy_by_epoch"].sel(model=model), marker="o")
        upper.set_title(f"({'abcd'[column]}) {model}", loc="left")
        logarithmic_axis(upper, "y")
        upper.set_xlabel("step")
        lower.set_xlabel("epoch")
        lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0][0].set_ylabel("training loss")
    panels[1][0].set_ylabel("test accuracy")
    panels[0][0].legend(frameon=False)
    settings = str(results.attrs.get("settings", ""))
    figure.supxlabel(settings, fontsize=7, color="#555555")
    return figure


def _curves(axes: Axes, values: xr.DataArray, marker: str = "") -> None:
    """One curve for each gamma over the last dimension, with a band if there are several seeds."""
    colours, gammas = matplotlib.colormaps["viridis"], values["gamma"].values
    (place,) = set(values.dims) - {"gamma", "seed"}
    for number, gamma in enumerate(gammas):
        each, colour = values.sel(gamma=gamma), colours(number / max(1, len(gammas) - 1) * 0.9)
        mean = each.mean("seed", skipna=False)
        label = rf"$\gamma$ = {gamma:g}"
        axes.plot(each[place], mean, color=colour, label=label, marker=marker, markersize=3)
        if each.sizes["seed"] > 1:
            least, most = each.min("seed", skipna=False), each.max("seed", skipna=False)
            axes.fill_between(each[place], least, most, color=colour, alpha=0.2, linewidth=0)
