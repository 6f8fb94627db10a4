"""Loss surfaces: lines, contours and three-dimensional views, one or several side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from normscope.plots.axes import logarithmic_axis
from normscope.plots.labels import add_values
from normscope.plots.style import INK, new_axes, new_figure
from normscope.registry import check_choice

KINDS = ("contour", "3d")
"""Ways to draw a surface over two directions."""

_COLOURS = "viridis"
_PATH = "#D55E00"
_MARK = "#fffff0"  # a report in its dark theme would draw plain white in the dark paper's colour
_LEVELS = 15
_LOGARITHMIC = 10.0  # largest over lowest loss from which on scales are logarithmic
_WIDEST = 1e4  # largest over lowest loss of a colour scale


def surface_plot(results: xr.Dataset, axes: Axes | None = None, kind: str = "contour") -> Axes:
    """Draw a loss surface: a line over one direction, contours or a 3-D view over two.

    A cross marks the weights, a circle the lowest point, a line the path of checkpoints. Losses
    that are not finite, and far above the lowest, have the last colour.

    Args:
        results: ``dataset`` of a `normscope.landscape.Surface`.
        axes: where to draw, with ``projection="3d"`` for a 3-D view; None for a new figure.
        kind: "contour" or "3d".

    Returns:
        The axes drawn on.
    """
    check_choice("kind of plot", kind, KINDS)
    if results["loss"].ndim == 1:
        return _draw_line(results, axes)
    if axes is None:
        figure = new_figure(5.6, 4.4)
        axes = figure.subplots(subplot_kw={"projection": "3d"} if kind == "3d" else {})
        figure.colorbar(_mappable([results]), ax=axes, label="loss", shrink=0.8, format="%.3g")
    (_draw_contours if kind == "contour" else _draw_view)(axes, results, _mappable([results]))
    return axes


def surfaces(results: Mapping[str, xr.Dataset], kind: str = "contour") -> Figure:
    """Draw several surfaces side by side, on one scale.

    Args:
        results: datasets of surfaces over the same number of directions, by title.
        kind: "contour" or "3d".

    Returns:
        The figure.
    """
    check_choice("kind of plot", kind, KINDS)
    figure = new_figure(width=3.3 * len(results) + 0.6, height=3.4)
    flat = all(each["loss"].ndim == 1 for each in results.values())
    view = {"projection": "3d"} if kind == "3d" and not flat else {}
    panels = figure.subplots(1, len(results), squeeze=False, subplot_kw=view)[0]
    mappable = _mappable(list(results.values()))
    for axes, (title, each) in zip(panels, results.items(), strict=True):
        if flat:
            _draw_line(each, axes)
        else:
            (_draw_contours if kind == "contour" else _draw_view)(axes, each, mappable)
        axes.set_title(title, fontsize=10)
    _share_heights(panels, "y" if flat else "z" if view else "")
    if not flat:
        figure.colorbar(mappable, ax=list(panels), label="loss", shrink=0.8, format="%.3g")
    return figure


def _share_heights(panels: Any, side: str) -> None:
    """Give the vertical axes of all panels the same ends."""
    if side:
        ends = np.array([getattr(axes, f"get_{side}lim")() for axes in panels])
        for axes in panels:
            getattr(axes, f"set_{side}lim")(ends[:, 0].min(), ends[:, 1].max())


def _mappable(results: list[xr.Dataset]) -> ScalarMappable:
    """Return the common colour scale of surfaces."""
    values = np.concatenate([each["loss"].values.ravel() for each in results])
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if low > 0 and high > _LOGARITHMIC * low:
        scale: Normalize = LogNorm(low, min(high, _WIDEST * low), clip=True)
    else:
        scale = Normalize(low, high if high > low else low + 1.0, clip=True)
    return ScalarMappable(scale, _COLOURS)


def _draw_line(results: xr.Dataset, axes: Axes | None) -> Axes:
    axes = new_axes(axes, 5.6, 3.6)
    x, loss = results["alpha"].values, results["loss"].values.astype(float)
    known = np.isfinite(loss)
    axes.plot(x, np.where(known, loss, np.nan), lw=1.4)
    if known.any():
        low = int(np.nanargmin(np.where(known, loss, np.nan)))
        axes.plot(x[low], loss[low], "o", mfc="none", color=INK)
        if loss[low] > 0 and loss[known].max() > _LOGARITHMIC**2 * loss[low]:
            logarithmic_axis(axes, "y")
    axes.axvline(0.0, color=INK, lw=0.8, ls=":")
    axes.set(xlabel=_label(results, "alpha"), ylabel="loss")
    add_values(axes, x[known], loss[known], ("alpha", "loss"))
    return axes


def _draw_contours(axes: Any, results: xr.Dataset, mappable: ScalarMappable) -> None:
    x, y, loss = _shown(results, mappable)
    scale = mappable.norm
    assert scale.vmin is not None
    assert scale.vmax is not None
    spaced = np.geomspace if isinstance(scale, LogNorm) else np.linspace
    levels = spaced(scale.vmin, scale.vmax, _LEVELS)
    axes.contourf(x, y, loss.T, levels, norm=scale, cmap=_COLOURS, extend="both")
    axes.contour(x, y, loss.T, levels, colors=_MARK, linewidths=0.4, alpha=0.7)
    raw = results["loss"].values
    if not np.isfinite(raw).all():
        axes.contourf(
            x, y, (~np.isfinite(raw)).T.astype(float), [0.5, 2], colors=["#888888"], hatches=["//"]
        )
    _draw_path(axes, results)
    axes.plot(0.0, 0.0, "+", color=_MARK, ms=9, mew=1.6)
    low = np.unravel_index(int(np.argmin(loss)), loss.shape)
    axes.plot(x[low[0]], y[low[1]], "o", mfc="none", color=_MARK, ms=7)
    axes.set(xlabel=_label(results, "alpha"), ylabel=_label(results, "beta"))
    axes.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    across, up = np.meshgrid(_few(len(x)), _few(len(y)), indexing="ij")
    chosen = across.ravel(), up.ravel()
    add_values(axes, x[chosen[0]], y[chosen[1]], ("alpha", "loss"), shown=raw[chosen])


def _few(count: int) -> NDArray[np.int64]:
    """Return at most ten indices, evenly spaced: a report shows so many values of each axis."""
    return np.unique(np.linspace(0, count - 1, 10).round().astype(int))


def _draw_path(axes: Any, results: xr.Dataset) -> None:
    if "trajectory" not in results:
        return
    path = results["trajectory"].values
    axes.plot(path[:, 0], path[:, 1], ".-", color=_PATH, lw=1.2, ms=5)
    axes.plot(path[-1, 0], path[-1, 1], "s", color=_PATH, ms=5)


def _draw_view(axes: Any, results: xr.Dataset, mappable: ScalarMappable) -> None:
    x, y, loss = _shown(results, mappable)
    is_log = isinstance(mappable.norm, LogNorm)
    height = np.log10(loss) if is_log else loss
    colours = mappable.to_rgba(loss.T)
    grid = np.meshgrid(x, y)
    axes.plot_surface(*grid, height.T, facecolors=colours, rstride=1, cstride=1, lw=0, shade=False)
    axes.set_xlabel(_label(results, "alpha"), fontsize=8)
    axes.set_ylabel(_label(results, "beta"), fontsize=8)
    axes.set_zlabel("log10 loss" if is_log else "loss", fontsize=8)
    axes.tick_params(labelsize=7, pad=0)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_major_locator(MaxNLocator(4))
    axes.set_box_aspect(None, zoom=0.8)


def _shown(
    results: xr.Dataset, mappable: ScalarMappable
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the coordinates, and the losses within the colour scale."""
    scale = mappable.norm
    loss = np.nan_to_num(results["loss"].values.astype(float), nan=np.inf)
    return results["alpha"].values, results["beta"].values, np.clip(loss, scale.vmin, scale.vmax)


def _label(results: xr.Dataset, axis: str) -> str:
    """Return the label of an axis: its name and direction."""
    return f"{axis} ({results['direction'].sel(axis=axis).item()})"
