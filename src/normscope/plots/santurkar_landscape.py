"""The loss landscape along the gradient: bands of loss and gradient, beta, predictiveness."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.santurkar_curves import LABELS, draw_curves, shared_legend
from normscope.plots.style import colour_of, new_figure

__all__ = ["landscape", "predictiveness", "training_and_landscape"]


def landscape(results: xr.Dataset) -> Figure:
    """Draw the bands of loss and gradient and the effective smoothness over training.

    Reference: santurkar2018, Figures 4 and 9.

    Args:
        results: ``loss_low``, ``loss_high``, ``gradient_distance_low``,
            ``gradient_distance_high`` and ``effective_smoothness`` over (norm, seed, step).

    Returns:
        The figure with three panels; bands and lines are medians over seeds.
    """
    figure = new_figure(width=11.0, height=3.9)
    panels = figure.subplots(1, 3)
    _draw_landscape(list(panels), results, "abc")
    shared_legend(figure, panels[0])
    return figure


def training_and_landscape(results: xr.Dataset) -> Figure:
    """Draw the training loss and the landscape of several normalizations.

    Reference: santurkar2018, Figures 11 and 12.

    Args:
        results: as for `landscape`, with ``training_loss``.

    Returns:
        The figure with four panels.
    """
    figure = new_figure(width=13.4, height=4.0)
    panels = figure.subplots(1, 4)
    draw_curves(panels[0], results["training_loss"])
    _set_logarithmic(panels[0], results["training_loss"])
    panels[0].set_ylabel("training loss")
    panels[0].set_title("(a) training", loc="left", fontsize=10)
    _draw_landscape(list(panels[1:]), results, "bcd")
    shared_legend(figure, panels[0], columns=5)
    return figure


def _draw_landscape(panels: list[Axes], results: xr.Dataset, letters: str) -> None:
    titles = ("loss landscape", "gradient predictiveness", r"effective $\beta$-smoothness")
    words = ("loss along the gradient", r"$\ell_2$ change of the gradient", r"$\beta$")
    for axes, letter, title, word in zip(panels, letters, titles, words, strict=True):
        axes.set_title(f"({letter}) {title}", loc="left", fontsize=10)
        axes.set_ylabel(word)
    _draw_bands(panels[0], results, "loss")
    _draw_bands(panels[1], results, "gradient_distance")
    draw_curves(panels[2], results["effective_smoothness"])
    logarithmic_axis(panels[2], "y")


def _draw_bands(axes: Axes, results: xr.Dataset, variable: str) -> None:
    """From the least to the largest value on the ray, as medians over seeds."""
    low, high = (_finite(results[f"{variable}_{end}"]).median("seed") for end in ("low", "high"))
    for norm in results["norm"].values:
        colour, ends = colour_of(str(norm)), (low.sel(norm=norm), high.sel(norm=norm))
        label = LABELS[str(norm)]
        axes.fill_between(results["step"], *ends, color=colour, alpha=0.3, lw=0, label=label)
        for end in ends:
            axes.plot(results["step"], end, color=colour, lw=0.8)
    logarithmic_axis(axes, "y")
    axes.set_xlabel("steps")


def _finite(values: xr.DataArray) -> xr.DataArray:
    return values.where(np.isfinite(values) & (values > 0))


def _set_logarithmic(axes: Axes, values: xr.DataArray) -> None:
    finite = values.where(np.isfinite(values))
    if float(finite.max()) > 10 * float(finite.min()) > 0:
        logarithmic_axis(axes, "y")


def predictiveness(results: xr.Dataset) -> Figure:
    """Draw the change of the gradient against the distance moved along it, of both networks.

    Reference: santurkar2018, Figure 10.

    Args:
        results: ``gradient_distance`` over (norm, seed, step, distance), and the deep linear
            network's under names with ``linear_``.

    Returns:
        The figure: lines are medians over seeds and steps, bands their middle half.
    """
    figure = new_figure(width=9.6, height=4.0)
    panels = figure.subplots(1, 2)
    names = {"linear_step": "step", "linear_distance": "distance"}
    linear = results["linear_gradient_distance"].rename(names)
    parts = {"(a) VGG": results["gradient_distance"], "(b) deep linear network": linear}
    for axes, (title, part) in zip(panels, parts.items(), strict=True):
        _draw_predictiveness(axes, part)
        axes.set_title(title, loc="left", fontsize=10)
    logarithmic_axis(panels[1], "x")
    shared_legend(figure, panels[0])
    return figure


def _draw_predictiveness(axes: Axes, differences: xr.DataArray) -> None:
    for norm in differences["norm"].values:
        values = _finite(differences.sel(norm=norm))
        low, middle, high = (values.quantile(q, ("seed", "step")) for q in (0.25, 0.5, 0.75))
        colour, distance = colour_of(str(norm)), differences["distance"]
        axes.fill_between(distance, low, high, color=colour, alpha=0.2, lw=0)
        axes.plot(distance, middle, "o-", color=colour, ms=3, label=LABELS[str(norm)])
    logarithmic_axis(axes, "y")
    axes.set_xlabel("distance along the gradient (learning rates)")
    axes.set_ylabel(r"$\ell_2$ change of the gradient")
