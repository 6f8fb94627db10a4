"""A quantity of each layer over training steps."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes

from normscope.plots.axes import logarithmic_axis
from normscope.plots.linear_axis import linear_labels
from normscope.plots.quantities import layer_name
from normscope.plots.step_axis import whole_steps
from normscope.plots.style import new_figure

__all__ = ["layer_lines"]

_BRIGHTEST = 0.65  # of the colour map: yellow lines are not seen on white
_MOST_NAMED = 8  # more names than that are not read


def layer_lines(
    values: xr.DataArray,
    axes: Axes | None = None,
    dimension: str = "layer",
    logarithmic: bool = False,
    legend: bool = True,
) -> Axes:
    """Draw a line for each layer, from dark to bright in their order; layers without values not.

    Args:
        values: over ``step`` and layers; over any further dimension the mean is drawn.
        axes: where to draw; None for a new figure.
        dimension: the name of the dimension of layers.
        logarithmic: whether the values' axis is.
        legend: whether the layers are named on it.

    Returns:
        The axes drawn on.
    """
    axes = new_figure().subplots() if axes is None else axes
    others = [name for name in values.dims if name not in ("step", dimension)]
    values = values.mean(others, skipna=True) if others else values
    names = [str(n) for n in values[dimension].values]
    shown = [n for n in names if np.isfinite(values.sel({dimension: n}).values).any()]
    for place, name in enumerate(shown):
        # by the place among all, so that a layer has one colour wherever it is drawn
        colour = colormaps["viridis"](_BRIGHTEST * names.index(name) / max(len(names) - 1, 1))
        line = values.sel({dimension: name}).values
        marker = "." if len(line) == 1 else ""
        label = _label(name) if _is_named(place, len(shown)) else None
        axes.plot(values["step"].values, line, color=colour, lw=1, marker=marker, label=label)
    linear_labels(axes)
    if logarithmic and bool((values > 0).any()):
        logarithmic_axis(axes, "y")
    axes.set_xlabel("step")
    whole_steps(axes)
    if shown and legend:
        # lines are all over the panel: there is no room among them
        axes.legend(frameon=False, fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    return axes


def _label(name: str) -> str:
    """A layer's name in a legend, which leaves out labels that begin by an underscore."""
    return f" {name}" if name.startswith("_") else layer_name(name)


def _is_named(place: int, count: int) -> bool:
    """Whether the legend names a line: all of a few, else some of them evenly and the last."""
    gap = -(-count // _MOST_NAMED)
    return place % gap == 0 or place == count - 1
