"""Internal covariate shift and changes of the activations' moments, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis, step_axis
from normscope.plots.labels import add_values, label_ends
from normscope.plots.names import name_of
from normscope.plots.style import WIDTH, colour_of, hide_spines, legend_below, new_figure
from normscope.plots.training_curves import draw_curves, draw_linear_loss

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
    legend_below(figure, panels[0][0])
    return figure


def shift_by_layer(results: xr.Dataset) -> Figure:
    """Draw cosine and l2 difference of five layers of each network.

    Reference: santurkar2018, Figure 6.

    Args:
        results: as for `shift_with_training`, without the training curves.

    Returns:
        The figure: a row for each network and quantity, a column for each layer.
    """
    figure = new_figure(width=13.0, height=9.6)
    panels = figure.subplots(4, 5)
    for upper, prefix in zip((0, 2), _NETWORKS, strict=True):
        pairs = _pairs(results, prefix, panels.shape[1])
        for index, (layer, variable) in enumerate(pairs):
            axes = panels[upper + index % 2][index // 2]
            _draw_shift(axes, results, prefix, layer, variable)
    for axes in panels.flat:
        axes.set_visible(axes.has_data())
    legend_below(figure, panels[0][0])
    return figure


def _pairs(results: xr.Dataset, prefix: str, count: int) -> list[tuple[str, str]]:
    """Return layers, evenly spaced and without the first, each with both quantities."""
    names = [str(name) for name in results[f"{prefix}layer"].values]
    inner = np.linspace(1, len(names) - 1, count + 2)[1:-1] if count < len(names) else [1]
    chosen = np.unique(np.round(inner).astype(int))
    return [(names[index], variable) for index in chosen for variable in _QUANTITIES]


def _draw_shift(axes: Axes, results: xr.Dataset, prefix: str, layer: str, variable: str) -> None:
    part = results[f"{prefix}{variable}"].sel({f"{prefix}layer": layer})
    curves = part.rename({f"{prefix}step": "step"}) if prefix else part
    draw_curves(axes, curves.dropna("step", how="all"))
    number = [str(name) for name in results[f"{prefix}layer"].values].index(layer) + 1
    axes.set_title(f"{_NETWORKS[prefix]}, layer {number} ({layer})", loc="left", fontsize=8)
    axes.set_ylabel(_QUANTITIES[variable])
    if variable == "shift_distance":
        logarithmic_axis(axes, "y")
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.locator_params(axis="y", nbins=4)
    axes.locator_params(axis="x", nbins=4)


def moment_changes(results: xr.Dataset) -> Figure:
    """Draw the change of mean and variance between successive steps, for three layers.

    Reference: santurkar2018, Figure 7.

    Args:
        results: ``activation_mean_change`` and ``activation_variance_change`` over (norm, seed,
            step, layer, unit).

    Returns:
        The figure: means above, variances below; lines are medians over the sampled units.
    """
    names = [str(name) for name in results["layer"].values]
    chosen = np.unique(np.linspace(0, len(names) - 1, 5)[1:-1].round().astype(int))
    figure = new_figure(width=10.6, height=5.8)
    panels = figure.subplots(2, len(chosen), squeeze=False)
    for row, moment in zip(panels, ("mean", "variance"), strict=True):
        for axes, index in zip(row, chosen, strict=True):
            change = results[f"activation_{moment}_change"].isel(layer=int(index))
            curves = change.median("unit").dropna("step", how="all")
            draw_curves(axes, curves.where(curves > 0))
            logarithmic_axis(axes, "y")
            axes.set_title(f"layer {index + 1} ({names[index]})", loc="left", fontsize=9)
        row[0].set_ylabel(f"change of the {moment}")
    legend_below(figure, panels[0][0])
    return figure


def norm_shift(results: xr.Dataset) -> Figure:
    """Draw cosine and l2 difference of a layer's gradients before and after lower layers move.

    Reference: santurkar2018, Definition 2.1.

    Args:
        results: ``shift_cosine`` and ``shift_distance`` over (norm, seed, step, layer).

    Returns:
        The figure with two panels; means over all layers but the first.
    """
    figure = new_figure(WIDTH, height=3.4)
    left, right = figure.subplots(1, 2)
    later = results.isel(layer=slice(1, None))
    draw_medians(left, later["shift_cosine"].mean("layer"), "cosine (1: no shift)", False)
    draw_medians(right, later["shift_distance"].mean("layer"), "l2 difference")
    return figure


def draw_medians(axes: Axes, curves: xr.DataArray, label: str, logarithmic: bool = True) -> None:
    """Draw a thin line for each seed and a thick median, for each normalization, with its name.

    Args:
        axes: to draw on.
        curves: over (norm, seed, step).
        label: of the vertical axis.
        logarithmic: whether the vertical axis is.
    """
    for norm in map(str, curves["norm"].values):
        lines = curves.sel(norm=norm).transpose("step", "seed")
        known = lines.where(np.isfinite(lines) & ((lines > 0) | (not logarithmic)))
        style: dict[str, Any] = {"color": colour_of(norm)}
        if lines.sizes["seed"] > 1:
            axes.plot(lines["step"], known.values, lw=0.5, alpha=0.35, **style)
        middle, name = known.median("seed").values, name_of(norm)
        axes.plot(lines["step"], middle, lw=1.6, label=name, **style)
        add_values(axes, lines["step"].values, middle, ("step", label.partition(",")[0]), name)
    if logarithmic:
        logarithmic_axis(axes, "y")
    step_axis(axes)
    axes.set_ylabel(label)
    label_ends(axes)
    hide_spines(axes)
