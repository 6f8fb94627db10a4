"""How gradients grow through a network: by layer, batch size, width and depth."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import colour_of, new_figure

__all__ = ["gradient_growth"]

LIMIT = math.pi / (math.pi - 1)
_ACTIVATIONS = {"relu": ("#D55E00", "o"), "tanh": ("#009E73", "s"), "linear": ("#0072B2", "^")}
_TITLES = {"relu": "ReLU", "tanh": "tanh", "linear": "linear"}
_NAMES = {**_TITLES, "linear": "linear, (B-2)/(B-3)"}


def gradient_growth(results: xr.Dataset) -> Figure:
    """Four panels: squared gradients by layer; growth by batch size and by width; gain by depth.

    Points are measurements, lines the theory.

    Args:
        results: as the experiment yang2019/explosion returns it.

    Returns:
        The figure.
    """
    figure = new_figure(9.6, 7.2)
    panels = figure.subplots(2, 2)
    _by_layer(panels[0, 0], results)
    _by_batch_size(panels[0, 1], results)
    _by_width(panels[1, 0], results)
    _by_depth(panels[1, 1], results)
    for axes in panels.flat:
        axes.legend(frameon=False, fontsize="small")
        axes.minorticks_off()  # of many decades: more ink than news
    return figure


def _style(architecture: str) -> tuple[str, str]:
    """Colour of the normalization; a hollow marker with skip connections."""
    norm, _, skip = architecture.partition(", ")
    return colour_of(norm), "none" if skip else colour_of(norm)


def _middle(values: xr.DataArray) -> xr.DataArray:
    """The geometric mean over seeds."""
    logarithm: xr.DataArray = xr.apply_ufunc(np.log, values).mean("seed")
    middle: xr.DataArray = xr.apply_ufunc(np.exp, logarithm)
    return middle


def _by_layer(axes: Axes, results: xr.Dataset) -> None:
    activations = [str(name) for name in results["activation"].values]
    chosen = "relu" if "relu" in activations else activations[0]
    measured = results["squared_gradient"].sel(activation=chosen)
    every = max(1, results.sizes["layer"] // 20)
    for name in results["architecture"].values:
        colour, face = _style(str(name))
        expected = results["expected_gradient"].sel(activation=chosen, architecture=name)
        axes.plot(results["layer"], expected, color=colour, lw=1)
        centre = _middle(measured.sel(architecture=name))
        options = {"ms": 3, "color": colour, "mfc": face, "label": name}
        axes.plot(results["layer"], centre, "o", markevery=every, **options)
    logarithmic_axis(axes, "y")
    axes.set_xlabel("layer")
    axes.set_ylabel("squared gradient, last layer = 1")
    title = f"{_TITLES.get(chosen, chosen)}, batch {results.attrs['batch_size']}"
    axes.set_title(title, fontsize="medium")


def _by_batch_size(axes: Axes, results: xr.Dataset) -> None:
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
    axes.axhline(LIMIT, color="#777777", ls="--", lw=1, label=r"$\pi/(\pi-1)$")
    logarithmic_axis(axes, "x", base=2)
    axes.set_xlabel("batch size B")
    axes.set_ylabel("growth of the squared gradient per layer")


def _by_width(axes: Axes, results: xr.Dataset) -> None:
    widths = results["width"].values
    growth = results["growth_by_width"]
    for seed in results["seed"].values:
        axes.plot(widths, growth.sel(seed=seed), "o", ms=3, color="#D55E00", alpha=0.7)
    size = results.attrs["batch_size"]
    if size in results["batch_size"] and "relu" in results["activation"]:
        expected = float(results["expected_growth"].sel(activation="relu", batch_size=size))
        axes.axhline(expected, color="#D55E00", lw=1, label=f"ReLU, batch {size}, infinite width")
    axes.axhline(LIMIT, color="#777777", ls="--", lw=1, label=r"$\pi/(\pi-1)$")
    logarithmic_axis(axes, "x")
    axes.set_xlabel("width")
    axes.set_ylabel("growth of the squared gradient per layer")


def _by_depth(axes: Axes, results: xr.Dataset) -> None:
    depths = results["depth"].values
    for name in results["architecture"].values:
        colour, face = _style(str(name))
        gain = _middle(results["gain_by_depth"].sel(architecture=name))
        line = "--" if face == "none" else "-"
        axes.plot(depths, gain, "o", ls=line, lw=1, ms=4, color=colour, mfc=face, label=name)
    logarithmic_axis(axes, "y")
    axes.set_xlabel("depth")
    axes.set_ylabel("squared gradient, first layer / last")
