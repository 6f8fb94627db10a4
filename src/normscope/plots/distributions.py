"""Distributions of activations over training, as ridges: densities of some steps, stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.style import colour_of, new_figure

_SHORT = {
    "none": "Standard",
    "batch": "+ BatchNorm",
    "noisy": '+ "Noisy"',
    "l1": r"+ $\ell_1$",
    "l2": r"+ $\ell_2$",
    "linf": r"+ $\ell_\infty$",
}
_RIDGES = 8
_OVERLAP = 1.6  # height of the highest density, in gaps between two ridges


def distributions_over_training(results: xr.Dataset) -> Figure:
    """Draw the distribution of a sampled activation: a column per layer, a row per network.

    Reference: santurkar2018, Figures 8 and 14.

    Args:
        results: ``histogram`` over (norm, step, layer, bin) with ``histogram_low`` and
            ``histogram_high``; layers without histograms are left out.

    Returns:
        The figure; training goes upwards in every panel.
    """
    norms = [str(norm) for norm in results["norm"].values]
    present = results["histogram"].notnull().any(("norm", "step", "bin"))
    layers = [str(layer) for layer in results["layer"].values[present.values]]
    figure = new_figure(width=1.2 + 2.3 * len(layers), height=0.8 + 1.7 * len(norms))
    panels = figure.subplots(len(norms), len(layers), squeeze=False)
    draw_distributions(panels, results, norms, layers)
    return figure


def draw_distributions(
    panels: Any, results: xr.Dataset, norms: list[str], layers: list[str]
) -> None:
    """Draw distributions into a grid of axes, a row per normalization and a column per layer.

    Args:
        panels: the grid of axes.
        results: histograms, as in `distributions_over_training`.
        norms: the rows.
        layers: the columns.
    """
    for row, norm in enumerate(norms):
        for column, layer in enumerate(layers):
            axes = panels[row][column]
            _draw_ridges(axes, results.sel(norm=norm, layer=layer), colour_of(norm))
            if row == 0:
                axes.set_title(layer, fontsize=9)
            if column == 0:
                axes.set_ylabel(_SHORT[norm], fontsize=9)
            if row == len(norms) - 1:
                axes.set_xlabel("activation", fontsize=8)


def _draw_ridges(axes: Axes, results: xr.Dataset, colour: str) -> None:
    """Draw densities of evenly spaced steps, the first at the bottom, each scaled to one height."""
    counts = results["histogram"].dropna("step", how="all")
    steps = counts["step"].values
    chosen = steps[np.unique(np.linspace(0, len(steps) - 1, _RIDGES).round().astype(int))]
    for base, step in enumerate(chosen):
        heights = counts.sel(step=step).values
        low, high = (float(results[f"histogram_{end}"].sel(step=step)) for end in ("low", "high"))
        edges = np.linspace(low, high, len(heights) + 1)
        centres = (edges[1:] + edges[:-1]) / 2
        ridge = base + _OVERLAP * heights / max(heights.max(), 1.0)
        order = len(chosen) - base
        axes.fill_between(centres, base, ridge, color=colour, alpha=0.35, lw=0, zorder=order)
        axes.plot(centres, ridge, color=colour, lw=0.8, zorder=order)
    ends = [0, len(chosen) - 1]
    axes.set_yticks(ends, [str(chosen[end]) for end in ends], fontsize=7)
    axes.tick_params(axis="x", labelsize=7)
    axes.locator_params(axis="x", nbins=4)
