"""Training curves: accuracy and loss over training, and distributions of activations."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import INK, colour_of, legend_below, new_figure

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
    """Draw a line for each normalization: the median over seeds, with a thin line for each seed.

    Args:
        axes: to draw on.
        curves: over (norm, seed, step).
        dashes: line style.
        label: added to the name of the normalization.
    """
    for norm in curves["norm"].values:
        lines = curves.sel(norm=norm).transpose("step", "seed")
        finite = lines.where(np.isfinite(lines))
        style: dict[str, Any] = {"color": colour_of(str(norm)), "linestyle": dashes}
        if lines.sizes["step"] == 1:
            style["marker"] = "o"  # a line of one point would be invisible
        axes.plot(lines["step"], finite, lw=0.6, alpha=0.35, **style)
        middle = finite.median("seed", skipna=False)
        axes.plot(lines["step"], middle, lw=1.6, label=f"{LABELS[str(norm)]}{label}", **style)
    axes.set_xlabel("steps")


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
    legend_below(left, panels[0], columns=2, fontsize=8)
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
    legend_below(figure, left, columns=3)
    return figure


def draw_linear_loss(axes: Axes, losses: xr.DataArray) -> None:
    """Draw the deep linear network's loss, over (norm, seed, linear_step), logarithmically."""
    draw_curves(axes, losses.rename(linear_step="step"))
    logarithmic_axis(axes, "y")
    axes.set_ylabel("training loss (summed)")


def losses_by_rate(results: xr.Dataset) -> Figure:
    """Draw the loss relative to the first, over training, in a panel for each learning rate.

    Args:
        results: ``training_loss`` over (norm, learning_rate, seed, step).

    Returns:
        The figure; a line ends where its run diverged.
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
    legend_below(figure, panels[0])
    return figure


def gamma_curves(results: xr.Dataset) -> Figure:
    """Draw training loss over steps and test accuracy over epochs: mean and range of the seeds.

    One column per model; a curve ends where one of its seeds diverged.

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
        _draw_gammas(upper, results["loss"].sel(model=model))
        _draw_gammas(lower, results["test_accuracy_by_epoch"].sel(model=model), marker="o")
        upper.set_title(f"({'abcd'[column]}) {model}", loc="left")
        logarithmic_axis(upper, "y")
        upper.set_xlabel("step")
        lower.set_xlabel("epoch")
        lower.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0][0].set_ylabel("training loss")
    panels[1][0].set_ylabel("test accuracy")
    panels[0][0].legend(frameon=False)
    figure.supxlabel(str(results.attrs.get("settings", "")), fontsize=7, color=INK)
    return figure


def _draw_gammas(axes: Axes, values: xr.DataArray, marker: str = "") -> None:
    """Draw one curve for each gamma, with a band if there are several seeds."""
    colours, gammas = matplotlib.colormaps["viridis"], values["gamma"].values
    (time,) = set(values.dims) - {"gamma", "seed"}  # step or epoch
    for number, gamma in enumerate(gammas):
        each, colour = values.sel(gamma=gamma), colours(number / max(1, len(gammas) - 1) * 0.9)
        mean = each.mean("seed", skipna=False)
        label = rf"$\gamma$ = {gamma:g}"
        axes.plot(each[time], mean, color=colour, label=label, marker=marker, markersize=3)
        if each.sizes["seed"] > 1:
            least, most = each.min("seed", skipna=False), each.max("seed", skipna=False)
            axes.fill_between(each[time], least, most, color=colour, alpha=0.2, linewidth=0)
