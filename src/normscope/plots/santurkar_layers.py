"""Layer by layer over training: internal covariate shift, and changes of activations' moments."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.santurkar_curves import (
    draw_curves,
    draw_linear_loss,
    shared_legend,
)
from normscope.plots.style import new_figure

__all__ = ["moment_changes", "shift_by_layer", "shift_with_training"]

_QUANTITIES = {
    "shift_cosine": "cosine",
    "shift_distance": r"$\ell_2$ difference",
}
_NETWORKS = {"": "VGG", "linear_": "DLN"}


def shift_with_training(results: xr.Dataset) -> Figure:
    """Draw cosine and l2 difference of two layers of each network, beside how it trains.

    Reference: santurkar2018, Figure 3.

    Args:
        results: ``shift_cosine`` and ``shift_distance`` over (norm, seed, step, layer), and
            ``training_accuracy``; of the deep linear network under names with ``linear_``, and
            ``linear_training_loss``.

    Returns:
        The figure: above VGG, below the deep linear network.
    """
    figure = new_figure(width=13.0, height=6.4)
    panels = figure.subplots(2, 5)
    draw_curves(panels[0][0], results["training_accuracy"] * 100)
    panels[0][0].set_ylabel("training accuracy (%)")
    draw_linear_loss(panels[1][0], results["linear_training_loss"])
    for row, prefix in zip(panels, _NETWORKS, strict=True):
        row[0].set_title(_NETWORKS[prefix], loc="left", fontsize=10)
        for column, (layer, variable) in enumerate(_pairs(results, prefix, 2), start=1):
            _draw_shift(row[column], results, prefix, layer, variable)
    shared_legend(figure, panels[0][0])
    return figure


def shift_by_layer(results: xr.Dataset) -> Figure:
    """Draw cosine and l2 difference of five layers of each network.

    Reference: santurkar2018, Figure 6.

    Args:
        results: as for `shift_with_training`, the training curves left out.

    Returns:
        The figure: a row for each network and quantity, a column for each layer.
    """
    figure = new_figure(width=13.0, height=9.6)
    panels = figure.subplots(4, 5)
    for upper, prefix in zip((0, 2), _NETWORKS, strict=True):
        pairs = _pairs(results, prefix, panels.shape[1])
        for place, (layer, variable) in enumerate(pairs):
            axes = panels[upper + place % 2][place // 2]
            _draw_shift(axes, results, prefix, layer, variable)
    for axes in panels.flat:
        axes.set_visible(axes.has_data())
    shared_legend(figure, panels[0][0])
    return figure


def _pairs(results: xr.Dataset, prefix: str, count: int) -> list[tuple[str, str]]:
    """Layers, evenly spaced and without the first, each with both quantities."""
    names = [str(name) for name in results[f"{prefix}layer"].values]
    inner = np.linspace(1, len(names) - 1, count + 2)[1:-1] if count < len(names) else [1]
    places = np.unique(np.round(inner).astype(int))
    return [(names[place], variable) for place in places for variable in _QUANTITIES]


def _draw_shift(axes: Axes, results: xr.Dataset, prefix: str, layer: str, variable: str) -> None:
    part = results[f"{prefix}{variable}"].sel({f"{prefix}layer": layer})
    curves = part.rename({f"{prefix}step": "step"}) if prefix else part
    draw_curves(axes, curves.dropna("step", how="all"))
    place = [str(name) for name in results[f"{prefix}layer"].values].index(layer) + 1
    axes.set_title(f"{_NETWORKS[prefix]}, layer {place} ({layer})", loc="left", fontsize=8)
    axes.set_ylabel(_QUANTITIES[variable])
    if variable == "shift_distance":
        logarithmic_axis(axes, "y")
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.locator_params(axis="y", nbins=4)
    axes.locator_params(axis="x", nbins=4)


def moment_changes(results: xr.Dataset) -> Figure:
    """Draw the change of mean and variance between successive steps, three layers of the network.

    Reference: santurkar2018, Figure 7.

    Args:
        results: ``activation_mean_change`` and ``activation_variance_change`` over (norm, seed,
            step, layer, unit).

    Returns:
        The figure: means above, variances below; lines are medians over the sampled units.
    """
    names = [str(name) for name in results["layer"].values]
    places = np.unique(np.linspace(0, len(names) - 1, 5)[1:-1].round().astype(int))
    figure = new_figure(width=10.6, height=5.8)
    panels = figure.subplots(2, len(places), squeeze=False)
    for row, moment in zip(panels, ("mean", "variance"), strict=True):
        for axes, place in zip(row, places, strict=True):
            change = results[f"activation_{moment}_change"].isel(layer=int(place))
            curves = change.median("unit").dropna("step", how="all")
            draw_curves(axes, curves.where(curves > 0))
            logarithmic_axis(axes, "y")
            axes.set_title(f"layer {place + 1} ({names[place]})", loc="left", fontsize=9)
        row[0].set_ylabel(f"change of the {moment}")
    shared_legend(figure, panels[0][0])
    return figure
