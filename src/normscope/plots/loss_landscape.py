"""The loss landscape along the gradient: ranges of loss and gradient, roughness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.layer_shift import draw_medians
from normscope.plots.names import name_of
from normscope.plots.style import WIDTH, colour_of, legend_below, new_figure
from normscope.plots.training_curves import LABELS, draw_curves

_BANDS = {"loss": "loss along the gradient", "gradient_distance": "change of the gradient"}
_REFERENCE_COLOUR = "#777777"


def landscape(results: xr.Dataset) -> Figure:
    """Draw the bands of loss and gradient and the roughness (beta) over training.

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
    legend_below(figure, panels[0])
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
    finite = results["training_loss"].where(np.isfinite(results["training_loss"]))
    if float(finite.max()) > 10 * float(finite.min()) > 0:
        logarithmic_axis(panels[0], "y")
    panels[0].set_ylabel("training loss")
    panels[0].set_title("(a) training", loc="left", fontsize=10)
    _draw_landscape(list(panels[1:]), results, "bcd")
    legend_below(figure, panels[0], columns=5)
    return figure


def _draw_landscape(panels: list[Axes], results: xr.Dataset, letters: str) -> None:
    titles = ("loss landscape", "gradient predictiveness", r"roughness ($\beta$)")
    words = ("loss along the gradient", r"$\ell_2$ change of the gradient", r"$\beta$")
    for axes, letter, title, word in zip(panels, letters, titles, words, strict=True):
        axes.set_title(f"({letter}) {title}", loc="left", fontsize=10)
        axes.set_ylabel(word)
    _draw_bands(panels[0], results, "loss")
    _draw_bands(panels[1], results, "gradient_distance")
    draw_curves(panels[2], results["effective_smoothness"])
    logarithmic_axis(panels[2], "y")


def _draw_bands(axes: Axes, results: xr.Dataset, variable: str) -> None:
    """Draw the range along the gradient, as medians over seeds."""
    low, high = _band_ends(results, variable)
    for norm in results["norm"].values:
        colour, ends = colour_of(str(norm)), (low.sel(norm=norm), high.sel(norm=norm))
        label = LABELS[str(norm)]
        axes.fill_between(results["step"], *ends, color=colour, alpha=0.3, lw=0, label=label)
        for end in ends:
            axes.plot(results["step"], end, color=colour, lw=0.8)
    logarithmic_axis(axes, "y")
    axes.set_xlabel("steps")


def _band_ends(results: xr.Dataset, variable: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the least and the largest value along the gradient, as medians over seeds."""
    low, high = (_positive(results[f"{variable}_{end}"]).median("seed") for end in ("low", "high"))
    return low, high


def _positive(values: xr.DataArray) -> xr.DataArray:
    """Mask values that are not finite and positive."""
    return values.where(np.isfinite(values) & (values > 0))


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
    legend_below(figure, panels[0])
    return figure


def _draw_predictiveness(axes: Axes, differences: xr.DataArray) -> None:
    for norm in differences["norm"].values:
        values = _positive(differences.sel(norm=norm))
        low, middle, high = (values.quantile(q, ("seed", "step")) for q in (0.25, 0.5, 0.75))
        colour, distance = colour_of(str(norm)), differences["distance"]
        axes.fill_between(distance, low, high, color=colour, alpha=0.2, lw=0)
        axes.plot(distance, middle, "o-", color=colour, ms=3, label=LABELS[str(norm)])
    logarithmic_axis(axes, "y")
    moved = "distance along the gradient (learning rates)"
    axes.set(xlabel=moved, ylabel=r"$\ell_2$ change of the gradient")


def norm_landscape(results: xr.Dataset) -> Figure:
    """Draw the bands of loss and gradient of each normalization over those of the first.

    Reference: santurkar2018, Figure 4 (a) and (b).

    Args:
        results: ``loss_low``, ``loss_high``, ``gradient_distance_low`` and
            ``gradient_distance_high`` over (norm, seed, step).

    Returns:
        The figure: a row for the loss, a row for the gradient.
    """
    norms = [str(norm) for norm in results["norm"].values]
    figure = new_figure(width=max(min(2.1 * len(norms), WIDTH), 5.5), height=4.6)
    panels = figure.subplots(len(_BANDS), len(norms), squeeze=False)
    for row, (variable, label) in zip(panels, _BANDS.items(), strict=True):
        _draw_norm_bands(row, results, norms, variable)
        for axes, norm in zip(row, norms, strict=True):  # a phone shows each alone
            axes.set_title(f"{name_of(norm)}\n{label}", color=colour_of(norm), fontsize=9)
    return figure


def norm_roughness(results: xr.Dataset) -> Figure:
    """Draw the roughness (beta) of every normalization over training; larger is rougher.

    Reference: santurkar2018, Figure 4 (c).

    Args:
        results: ``effective_smoothness`` over (norm, seed, step).

    Returns:
        The figure.
    """
    figure = new_figure(width=5.4, height=3.2)
    words = "roughness (beta), larger is rougher"
    draw_medians(figure.subplots(), results["effective_smoothness"], words)
    return figure


def _draw_norm_bands(
    panels: Sequence[Axes], results: xr.Dataset, norms: Sequence[str], variable: str
) -> None:
    """Draw one band per panel, all on one scale, with the edges of the first behind the others."""
    ends = _band_ends(results, variable)
    steps = results["step"].values
    for axes, norm in zip(panels, norms, strict=True):
        if norm != norms[0]:
            for end in ends:
                axes.plot(steps, end.sel(norm=norms[0]), color=_REFERENCE_COLOUR, lw=1.0, ls=":")
        low, high = (end.sel(norm=norm).values for end in ends)
        axes.fill_between(steps, low, high, color=colour_of(norm), alpha=0.35, lw=0)
        for edge in (low, high):
            axes.plot(steps, edge, color=colour_of(norm), lw=0.9)
        logarithmic_axis(axes, "y")
        axes.set_xlabel("step", fontsize="x-small")
        axes.tick_params(labelsize="x-small")
        axes.minorticks_off()
    bottoms, tops = zip(*(axes.get_ylim() for axes in panels), strict=True)
    for axes in panels:
        axes.set_ylim(min(bottoms), max(tops))
