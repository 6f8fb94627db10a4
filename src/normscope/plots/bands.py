"""The range of a quantity over training steps, as a shaded band."""

from __future__ import annotations

import xarray as xr
from matplotlib.axes import Axes

from normscope.plots.linear_axis import linear_labels
from normscope.plots.step_axis import whole_steps
from normscope.plots.style import new_figure

__all__ = ["band", "band_of"]


def band_of(values: xr.DataArray, dimension: str = "distance") -> xr.Dataset:
    """The least and the largest value over a dimension.

    Args:
        values: such as the losses along the gradient, over step and distance.
        dimension: which one to go over.

    Returns:
        ``low`` and ``high``; NaN where any of the values is.

    >>> both = band_of(xr.DataArray([[1.0, 3.0]], dims=("step", "distance")))
    >>> both["low"].item(), both["high"].item()
    (1.0, 3.0)
    """
    low, high = values.min(dimension, skipna=False), values.max(dimension, skipna=False)
    return xr.Dataset({"low": low, "high": high})


def band(
    values: xr.DataArray,
    axes: Axes | None = None,
    label: str | None = None,
    colour: str = "#0072B2",
    dimension: str = "distance",
) -> Axes:
    """Draw the range of a quantity over steps.

    Reference: santurkar2018, Figure 4.

    Args:
        values: over ``step`` and a dimension.
        axes: where to draw; None for a new figure.
        label: for the legend.
        colour: of the band.
        dimension: over which the range is taken.

    Returns:
        The axes drawn on.
    """
    axes = new_figure().subplots() if axes is None else axes
    ends = band_of(values, dimension)
    steps = values["step"].values
    axes.fill_between(
        steps, ends["low"].values, ends["high"].values, color=colour, alpha=0.4, lw=0, label=label
    )
    for end in ("low", "high"):  # thin edges: a band of one step has no area
        axes.plot(steps, ends[end].values, color=colour, lw=0.6, marker=_marker(len(steps)))
    axes.set_xlabel("step")
    whole_steps(axes)
    if axes.get_yscale() == "linear":
        linear_labels(axes)
    if label is not None:
        axes.legend(frameon=False)
    return axes


def _marker(steps: int) -> str:
    return "." if steps == 1 else ""
