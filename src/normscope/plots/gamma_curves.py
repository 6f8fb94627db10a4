"""Learning curves for several initial gammas: one column per model."""

from __future__ import annotations

import matplotlib
import xarray as xr
from matplotlib.figure import Figure

from normscope.plots.style import new_figure

__all__ = ["gamma_curves"]


def gamma_curves(results: xr.Dataset) -> Figure:
    """Draw training loss over steps and test accuracy over epochs, mean over the seeds.

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
    gammas = results["gamma"].values
    colours = matplotlib.colormaps["viridis"]
    for column, model in enumerate(models):
        upper, lower = panels[0][column], panels[1][column]
        for number, gamma in enumerate(gammas):
            mean = results.sel(model=model, gamma=gamma).mean("seed", skipna=False)
            colour = colours(number / max(1, len(gammas) - 1) * 0.9)
            upper.plot(mean["step"], mean["loss"], color=colour, label=rf"$\gamma$ = {gamma:g}")
            lower.plot(mean["epoch"], mean["test_accuracy_by_epoch"], "o-", ms=3, color=colour)
        upper.set_title(f"({'abcd'[column]}) {model}", loc="left")
        upper.set_yscale("log")
        upper.set_xlabel("step")
        lower.set_xlabel("epoch")
    panels[0][0].set_ylabel("training loss")
    panels[1][0].set_ylabel("test accuracy")
    panels[0][0].legend(frameon=False)
    settings = str(results.attrs.get("settings", ""))
    figure.supxlabel(settings, fontsize=7, color="#555555")
    return figure
