"""Training curves of santurkar2018: accuracy and loss over training, one line per network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.santurkar_distributions import draw_distributions
from normscope.plots.style import colour_of, new_figure

__all__ = [
    "LABELS",
    "accuracy_and_distributions",
    "draw_curves",
    "draw_linear_loss",
    "losses_by_rate",
    "shared_legend",
    "training_of_both",
]

LABELS = {
    "none": "Standard",
    "batch": "Standard + BatchNorm",
    "noisy": 'Standard + "Noisy" BatchNorm',
    "l1": r"Standard + Norm ($\ell_1$)",
    "l2": r"Standard + Norm ($\ell_2$)",
    "linf": r"Standard + Norm ($\ell_\infty$)",
}
_DASHES = ("-", "--", ":")


def draw_curves(axes: Axes, curves: xr.DataArray, dashes: str = "-", label: str = "") -> None:
    """Draw a line for each normalization: the median over seeds, with each seed faintly behind it.

    Args:
        axes: where to draw.
        curves: over (norm, seed, step).
        dashes: line style.
        label: added to the name of the normalization.
    """
    for norm in curves["norm"].values:
        lines = curves.sel(norm=norm).transpose("step", "seed")
        finite = lines.where(np.isfinite(lines))
        style: dict[str, Any] = {"color": colour_of(str(norm)), "linestyle": dashes}
        if lines.sizes["step"] == 1:
            style["marker"] = "o"  # a line of one point is invisible
        axes.plot(lines["step"], finite, lw=0.6, alpha=0.35, **style)
        middle = finite.median("seed", skipna=False)
        axes.plot(lines["step"], middle, lw=1.6, label=f"{LABELS[str(norm)]}{label}", **style)
    axes.set_xlabel("steps")


def shared_legend(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """One legend below all panels."""
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        list(unique.values()),
        list(unique),
        loc="outside lower center",
        ncols=min(columns, len(unique)),
        frameon=False,
    )


def accuracy_and_distributions(results: xr.Dataset) -> Figure:
    """Draw training accuracy, test accuracy, and the distributions of two layers' activations.

    Reference: santurkar2018, Figures 1 and 2.

    Args:
        results: ``training_accuracy`` and ``test_accuracy`` over (norm, [learning_rate,] seed,
            step), and histograms over (norm, step, layer, bin).

    Returns:
        The figure; learning rates differ by line style.
    """
    norms = [str(norm) for norm in results["norm"].values]
    figure = new_figure(width=10.4, height=1.2 + 1.5 * len(norms))
    parts: Any = figure.subfigures(1, 2, width_ratios=(2, 1.35))
    left, right = parts
    panels = left.subplots(1, 2, sharey=True)
    for axes, split in zip(panels, ("training", "test"), strict=True):
        _draw_accuracy(axes, results[f"{split}_accuracy"] * 100)
        axes.set_title(f"{split} accuracy", loc="left", fontsize=10)
    panels[0].set_ylabel("accuracy (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    left.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    layers = [str(layer) for layer in results["layer"].values]
    grid = right.subplots(len(norms), len(layers), squeeze=False)
    draw_distributions(grid, results, norms, layers)
    return figure


def _draw_accuracy(axes: Axes, curves: xr.DataArray) -> None:
    if "learning_rate" not in curves.dims:
        draw_curves(axes, curves)
        return
    for rate, dashes in zip(curves["learning_rate"].values, _DASHES, strict=False):
        draw_curves(axes, curves.sel(learning_rate=rate), dashes, label=f", rate {rate:g}")


def training_of_both(results: xr.Dataset) -> Figure:
    """Draw how VGG and the deep linear network train, side by side.

    Reference: santurkar2018, Figure 13.

    Args:
        results: ``training_accuracy`` over (norm, seed, step) and ``linear_training_loss`` over
            (norm, seed, linear_step).

    Returns:
        The figure.
    """
    figure = new_figure(width=9.6, height=4.0)
    left, right = figure.subplots(1, 2)
    draw_curves(left, results["training_accuracy"] * 100)
    left.set_ylabel("training accuracy (%)")
    left.set_title("(a) VGG", loc="left", fontsize=10)
    draw_linear_loss(right, results["linear_training_loss"])
    right.set_title("(b) deep linear network", loc="left", fontsize=10)
    shared_legend(figure, left, columns=3)
    return figure


def draw_linear_loss(axes: Axes, losses: xr.DataArray, names: Sequence[str] = ()) -> None:
    """Draw the deep linear network's loss on a logarithmic axis."""
    chosen = losses if not names else losses.sel(norm=list(names))
    draw_curves(axes, chosen.rename(linear_step="step"))
    logarithmic_axis(axes, "y")
    axes.set_ylabel("training loss (summed)")


def losses_by_rate(results: xr.Dataset) -> Figure:
    """Draw what is left of the first loss, over training, in a panel for each learning rate.

    Args:
        results: ``training_loss`` over (norm, learning_rate, seed, step).

    Returns:
        The figure; a line that ends has diverged.
    """
    rates = results["learning_rate"].values
    figure = new_figure(width=1.0 + 2.5 * len(rates), height=3.6)
    panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
    share = results["training_loss"] / results["training_loss"].isel(step=0)
    for axes, rate in zip(panels, rates, strict=True):
        draw_curves(axes, share.sel(learning_rate=rate))
        axes.set_title(f"rate {rate:g} of the sum", loc="left", fontsize=10)
        axes.axhline(1.0, color="0.7", lw=0.8, zorder=0)
        logarithmic_axis(axes, "y")
        axes.set_ylim(top=3.0)
    panels[0].set_ylabel("loss / first loss")
    shared_legend(figure, panels[0])
    return figure
