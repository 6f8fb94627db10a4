"""The size of the gradient by layer of a deep net, relative to its last hidden layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.names import name_of
from normscope.plots.style import colour_of, new_figure

__all__ = ["gradient_depth"]


def gradient_depth(results: xr.Dataset) -> Figure:
    """Draw a line for each normalization, and the growth that theory expects with BatchNorm.

    Reference: yang2019.

    Args:
        results: ``gradient_norm`` over (norm, seed, depth_layer), the head last, and
            ``expected_growth`` of its square per layer.

    Returns:
        The figure.
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
        axes.plot(layers, lines.median("seed").values, lw=1.6, label=name_of(norm), **style)
    if "batch" in results["norm"].values:
        expected = float(results["expected_growth"]) ** ((layers[-1] - layers) / 2)
        label = "theory, BatchNorm"
        axes.plot(layers, expected, "--", color=colour_of("batch"), lw=1, label=label)
    logarithmic_axis(axes, "y")
    axes.set_xlabel("layer")
    axes.set_xticks(np.unique(np.linspace(layers[0], layers[-1], min(8, len(layers))).round()))
    axes.set_ylabel("gradient norm, last hidden layer = 1")
    axes.legend(frameon=False, fontsize="small")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure
