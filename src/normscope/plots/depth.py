"""Growth of gradients through a network, and training loss by depth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.labels import add_values, label_ends
from normscope.plots.names import name_of
from normscope.plots.style import colour_of, hide_spines, new_figure

_LIMIT = math.pi / (math.pi - 1)
_ACTIVATIONS = {"relu": ("#D55E00", "o"), "tanh": ("#009E73", "s"), "linear": ("#0072B2", "^")}
_TITLES = {"relu": "ReLU", "tanh": "tanh", "linear": "linear"}
_NAMES = {**_TITLES, "linear": "linear, (B-2)/(B-3)"}


def gradient_growth(results: xr.Dataset) -> Figure:
    """Draw squared gradients by layer, growth by batch size and by width, and gain by depth.

    Points are measurements, lines the theory.

    Args:
        results: as the experiment yang2019/explosion returns it.

    Returns:
        The figure.
    """
    figure = new_figure(9.6, 7.2)
    panels = figure.subplots(2, 2)
    _growth_by_layer(panels[0, 0], results)
    _growth_by_batch_size(panels[0, 1], results)
    _growth_by_width(panels[1, 0], results)
    _gain_by_depth(panels[1, 1], results)
    for axes in panels.flat:
        axes.legend(frameon=False, fontsize="small")
        axes.minorticks_off()  # of many decades
    return figure


def _style(architecture: str) -> tuple[str, str]:
    """Return colour and fill of an architecture: hollow with skip connections."""
    norm, _, skip = architecture.partition(", ")
    return colour_of(norm), "none" if skip else colour_of(norm)


def _geometric_mean(values: xr.DataArray) -> xr.DataArray:
    """Return the geometric mean over seeds."""
    logarithm: xr.DataArray = xr.apply_ufunc(np.log, values).mean("seed")
    mean: xr.DataArray = xr.apply_ufunc(np.exp, logarithm)
    return mean


def _growth_by_layer(axes: Axes, results: xr.Dataset) -> None:
    activations = [str(name) for name in results["activation"].values]
    chosen = "relu" if "relu" in activations else activations[0]
    measured = results["squared_gradient"].sel(activation=chosen)
    every = max(1, results.sizes["layer"] // 20)
    for name in results["architecture"].values:
        colour, face = _style(str(name))
        expected = results["expected_gradient"].sel(activation=chosen, architecture=name)
        axes.plot(results["layer"], expected, color=colour, lw=1)
        centre = _geometric_mean(measured.sel(architecture=name))
        options = {"ms": 3, "color": colour, "mfc": face, "label": name}
        axes.plot(results["layer"], centre, "o", markevery=every, **options)
    logarithmic_axis(axes, "y")
    axes.set(xlabel="layer", ylabel="squared gradient, last layer = 1")
    title = f"{_TITLES.get(chosen, chosen)}, batch {results.attrs['batch_size']}"
    axes.set_title(title, fontsize="medium")


def _growth_by_batch_size(axes: Axes, results: xr.Dataset) -> None:
    sizes = results["batch_size"].values
    for name in results["activation"].values:
        colour, marker = _ACTIVATIONS.get(str(name), ("#777777", "x"))
        axes.plot(sizes, results["expected_growth"].sel(activation=name), color=colour, lw=1)
        growth = results["growth"].sel(activation=name)
        centre = growth.mean("seed")
        ends = [centre - growth.min("seed"), growth.max("seed") - centre]
        label = _NAMES.get(str(name), str(name))
        axes.errorbar(
            sizes, centre, yerr=ends, fmt=marker, ms=4, color=colour, capsize=2, label=label
        )
    axes.axhline(_LIMIT, color="#777777", ls="--", lw=1, label=r"$\pi/(\pi-1)$")
    logarithmic_axis(axes, "x", base=2)
    axes.set(xlabel="batch size B", ylabel="growth of the squared gradient per layer")


def _growth_by_width(axes: Axes, results: xr.Dataset) -> None:
    widths = results["width"].values
    growth = results["growth_by_width"]
    for seed in results["seed"].values:
        axes.plot(widths, growth.sel(seed=seed), "o", ms=3, color="#D55E00", alpha=0.7)
    size = results.attrs["batch_size"]
    if size in results["batch_size"] and "relu" in results["activation"]:
        expected = float(results["expected_growth"].sel(activation="relu", batch_size=size))
        axes.axhline(expected, color="#D55E00", lw=1, label=f"ReLU, batch {size}, infinite width")
    axes.axhline(_LIMIT, color="#777777", ls="--", lw=1, label=r"$\pi/(\pi-1)$")
    logarithmic_axis(axes, "x")
    axes.set(xlabel="width", ylabel="growth of the squared gradient per layer")


def _gain_by_depth(axes: Axes, results: xr.Dataset) -> None:
    depths = results["depth"].values
    for name in results["architecture"].values:
        colour, face = _style(str(name))
        gain = _geometric_mean(results["gain_by_depth"].sel(architecture=name))
        line = "--" if face == "none" else "-"
        axes.plot(depths, gain, "o", ls=line, lw=1, ms=4, color=colour, mfc=face, label=name)
    logarithmic_axis(axes, "y")
    axes.set(xlabel="depth", ylabel="squared gradient, first layer / last")


def gradient_depth(results: xr.Dataset) -> Figure:
    """Draw gradient norms by layer, and the growth that theory predicts with BatchNorm.

    Reference: yang2019.

    Args:
        results: ``gradient_norm`` over (norm, seed, depth_layer), the output layer last, and
            ``expected_growth`` of its square per layer.

    Returns:
        The figure; norms are relative to the last hidden layer.
    """
    figure = new_figure(width=5.4, height=3.8)
    axes = figure.subplots()
    hidden = results["gradient_norm"].isel(depth_layer=slice(None, -1))
    relative = hidden / hidden.isel(depth_layer=-1)
    layers = relative["depth_layer"].values
    for norm in map(str, results["norm"].values):
        lines = relative.sel(norm=norm).transpose("depth_layer", "seed")
        style: dict[str, Any] = {"color": colour_of(norm)}
        axes.plot(layers, lines.values, "o", ms=2.5, alpha=0.5, **style)
        middle = lines.median("seed").values
        axes.plot(layers, middle, lw=1.6, label=name_of(norm), **style)
        add_values(axes, layers, middle, ("layer", "gradient norm"), name_of(norm))
    if "batch" in results["norm"].values:
        expected = float(results["expected_growth"]) ** ((layers[-1] - layers) / 2)
        label = "theory, BatchNorm"
        axes.plot(layers, expected, "--", color=colour_of("batch"), lw=1, label=label)
    logarithmic_axis(axes, "y")
    axes.set_xlabel("layer, from the output back to the input")
    axes.set_xticks(np.unique(np.linspace(layers[0], layers[-1], min(8, len(layers))).round()))
    axes.set_ylabel("gradient norm, last hidden layer = 1")
    axes.invert_xaxis()  # lines end at the first layer, where they are farthest apart
    hide_spines(axes)
    label_ends(axes)
    return figure


def trainability(results: xr.Dataset) -> Figure:
    """Draw the best final loss by depth, and that of plain networks by learning rate.

    Args:
        results: as the experiment yang2019/trainability returns it.

    Returns:
        The figure.
    """
    figure = new_figure(9.6, 4.0)
    left, right = figure.subplots(1, 2, sharey=True)
    _loss_by_depth(left, results)
    _loss_by_learning_rate(right, results)
    for axes in (left, right):
        axes.axhline(math.log(results.attrs["classes"]), color="#777777", ls=":", label="guessing")
    left.legend(frameon=False, fontsize="small")
    # beside the panel, which the curves fill
    right.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    left.set_ylabel("final training loss")
    return figure


def _loss_by_depth(axes: Axes, results: xr.Dataset) -> None:
    depths = results["depth"].values
    for name in results["architecture"].values:
        norm, _, skip = str(name).partition(", ")
        colour, line = colour_of(norm), "--" if skip else "-"
        loss = results["best_loss"].sel(architecture=name)
        axes.fill_between(depths, loss.min("seed"), loss.max("seed"), color=colour, alpha=0.2, lw=0)
        axes.plot(depths, loss.mean("seed"), "o", ls=line, ms=4, color=colour, label=name)
    longer = results["longer_loss"].min("learning_rate").mean("seed")
    if longer.notnull().any():  # depths that did not train, given more steps
        label = f"batch, {results.attrs['longer']} times the steps"
        axes.plot(depths, longer, "x", ms=6, color=colour_of("batch"), label=label)
    axes.set_xlabel("depth")
    axes.set_title("at the best learning rate", fontsize="medium")


def _loss_by_learning_rate(axes: Axes, results: xr.Dataset) -> None:
    rates = results["learning_rate"].values
    depths = results["depth"].values
    for index, depth in enumerate(depths):
        loss = results["loss"].sel(architecture="batch", depth=depth).mean("seed")
        alpha = 0.25 + 0.75 * index / max(1, len(depths) - 1)
        style: dict[str, Any] = {"color": colour_of("batch"), "alpha": alpha, "ms": 4}
        axes.plot(rates, loss, "o-", label=f"depth {depth}", **style)
    logarithmic_axis(axes, "x")
    axes.set_xlabel("learning rate")
    axes.set_title("plain, batch normalization", fontsize="medium")
