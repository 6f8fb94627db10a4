"""Measurements of a scope: one panel per quantity, as curves, bands or lines per layer."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.errors import StateError
from normscope.plots.axes import full_labels, logarithmic_axis, step_axis
from normscope.plots.edge_of_stability import THRESHOLDS
from normscope.plots.labels import add_values
from normscope.plots.names import BANDS, dimension_name, layer_name, quantity_name
from normscope.plots.stability import threshold_lines
from normscope.plots.style import legend_entries, named_legend, new_axes, new_figure

_WIDE = 30.0  # a quantity that spans a larger ratio gets a logarithmic axis
_BRIGHTEST = 0.65  # of the colour map: yellow lines are invisible on white
_MOST_NAMED = 8  # layers that a legend names
_COLUMNS = 3
_WIDTHS = {4: 2.8}  # inches of a panel by panels per row, else 3.4
_TITLE_WIDTH = 11.2  # letters per inch of a panel
_LAYER_KINDS = ("layer", "norm_layer")
_POSITIONS = {  # of the legend of each kind of layer: if alone in its row, and beside the other
    "layer": ("outside lower left", "outside lower left"),
    "norm_layer": ("outside upper right", "outside lower right"),
}
_LEGEND_COLUMNS = 4
_LETTER, _KEY = 0.6, 4.8  # width of a letter and of a legend key, in font sizes
_SIZE = 10.0  # font size of a legend in points
_ROW = 0.22  # inches of a legend row


def scope_figure(results: xr.Dataset) -> Figure:
    """Draw what a scope measured.

    Args:
        results: as ``Scope.results`` returns it.

    Returns:
        A figure with a panel for each quantity that has values. Variables of a custom probe are
        drawn by their dimensions: a curve over ``step``, a line for each layer, a band over others.

    Raises:
        StateError: if nothing was measured.
    """
    drawn = [name for name in (*_PANELS, *_other_quantities(results)) if name in results]
    shown = [name for name in drawn if bool(results[name].notnull().any())]
    if not shown:
        raise StateError("there is nothing to draw: no step was measured with a finite value.")
    columns = _columns(len(shown))
    rows = -(-len(shown) // columns)
    width = _WIDTHS.get(columns, 3.4)
    figure = new_figure(width * columns, 2.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, name in zip(panels, shown, strict=False):
        _PANELS.get(name, _panel)(results[name], axes)
        threshold_lines(results, name, axes)
        axes.set_title(_title(quantity_name(name), int(_TITLE_WIDTH * width)), fontsize="medium")
    for axes in panels[len(shown) :]:
        axes.remove()
    _name_layers(figure, {name: axes for axes, name in zip(panels, shown, strict=False)}, results)
    return figure


def band_of(values: xr.DataArray, dimension: str = "distance") -> xr.Dataset:
    """Return the least and the largest value over a dimension.

    Args:
        values: such as the losses along the gradient, over step and distance.
        dimension: to reduce.

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
    """Draw the range of a quantity over steps as a shaded band.

    Reference: santurkar2018, Figure 4.

    Args:
        values: over ``step`` and a dimension.
        axes: to draw on; None for a new figure.
        label: for the legend.
        colour: of the band.
        dimension: over which the range is taken.

    Returns:
        The axes drawn on.
    """
    axes = new_axes(axes)
    ends, steps = band_of(values, dimension), values["step"].values
    low, high = ends["low"].values, ends["high"].values
    axes.fill_between(steps, low, high, color=colour, alpha=0.4, lw=0, label=label)
    for end in (low, high):  # a band of one step has no area
        axes.plot(steps, end, color=colour, lw=0.6, marker="." if len(steps) == 1 else "")
    step_axis(axes)
    if axes.get_yscale() == "linear":
        full_labels(axes)
    if label is not None:
        axes.legend(frameon=False)
    return axes


def layer_lines(
    values: xr.DataArray,
    axes: Axes | None = None,
    dimension: str = "layer",
    logarithmic: bool = False,
    legend: bool = True,
) -> Axes:
    """Draw a line for each layer that has values, from dark to bright in their order.

    Args:
        values: over ``step`` and layers; the mean over any further dimension is drawn.
        axes: to draw on; None for a new figure.
        dimension: the name of the dimension of layers.
        logarithmic: whether the vertical axis is.
        legend: whether to draw one.

    Returns:
        The axes drawn on.
    """
    axes = new_axes(axes)
    others = [name for name in values.dims if name not in ("step", dimension)]
    values = values.mean(others, skipna=True) if others else values
    names = [str(n) for n in values[dimension].values]
    shown = [n for n in names if np.isfinite(values.sel({dimension: n}).values).any()]
    every = -(-len(shown) // _MOST_NAMED)  # of many layers, some are named, and the last
    for index, name in enumerate(shown):
        # by the position among all layers, so that a layer has one colour in all panels
        colour = colormaps["viridis"](_BRIGHTEST * names.index(name) / max(len(names) - 1, 1))
        line = values.sel({dimension: name}).values
        named = index % every == 0 or index == len(shown) - 1
        label, marker = _layer_label(name) if named else None, "." if len(line) == 1 else ""
        axes.plot(values["step"].values, line, color=colour, lw=1, marker=marker, label=label)
    full_labels(axes)
    if logarithmic and bool((values > 0).any()):
        logarithmic_axis(axes, "y")
    step_axis(axes)
    if shown and legend:  # beside the panel, which the lines fill
        axes.legend(frameon=False, fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5))
    return axes


def _layer_label(name: str) -> str:
    """Return a layer's legend label; matplotlib hides labels that begin with an underscore."""
    return f" {name}" if name.startswith("_") else layer_name(name)


def _curve(values: xr.DataArray, axes: Axes) -> None:
    known = values.dropna("step")
    axes.plot(known["step"].values, known.values, ".-", lw=1)
    words = ("step", quantity_name(str(values.name or "value")))
    add_values(axes, known["step"].values, known.values, words)
    full_labels(axes)
    if _is_wide(known):
        logarithmic_axis(axes, "y")
    step_axis(axes)


def _is_wide(values: xr.DataArray) -> bool:
    finite = values.values[np.isfinite(values.values)]
    return bool(finite.size and finite.min() > 0 and finite.max() > _WIDE * finite.min())


def _first_comparison(values: xr.DataArray, axes: Axes) -> None:
    comparison = values.isel(comparison=0)
    layer_lines(comparison, axes, dimension="norm_layer", logarithmic=True, legend=False)


def _panel(values: xr.DataArray, axes: Axes) -> None:
    """Draw a variable that has no panel of its own, by its dimensions."""
    others = [dimension for dimension in values.dims if dimension != "step"]
    kind = next((kind for kind in _LAYER_KINDS if kind in others), None)
    if not others:
        _curve(values, axes)
    elif kind is not None:
        layer_lines(values, axes, kind, logarithmic=_is_wide(values), legend=False)
    else:
        band(values.stack(others=others, create_index=False), axes, dimension="others")


def _other_quantities(results: xr.Dataset) -> list[str]:
    """Return the variables of custom probes, in their order."""
    names = [str(name) for name in results.data_vars if "step" in results[name].dims]
    return [name for name in names if name not in _PANELS and name not in _NOT_DRAWN]


_layers_linear = partial(layer_lines, legend=False)
_layers_log = partial(layer_lines, logarithmic=True, legend=False)
_PANELS: dict[str, Callable[[xr.DataArray, Axes], object]] = {
    "loss": _curve,
    **dict.fromkeys(BANDS, band),
    "effective_smoothness": _curve,
    "local_smoothness": _curve,
    "top_eigenvalue": _curve,
    "shift_distance": _layers_log,
    "shift_cosine": _layers_linear,
    "gradient_norm": _layers_log,
    "activation_mean_change": _layers_log,
    "activation_variance_change": _layers_log,
    "mean_gap": _first_comparison,
    "spread_gap": _first_comparison,
}
_NOT_DRAWN = (  # ends of bands, moments whose change is drawn, histograms, and the like
    *("loss_low", "loss_high", "smoothness", "top_eigenvalue_residual"),
    *("gradient_distance_low", "gradient_distance_high"),
    *("gradient_cosine_low", "gradient_cosine_high"),
    *("activation_mean", "activation_variance"),
    *("histogram", "histogram_low", "histogram_high"),
    "critical_rate_error",
    "sharpness_error",
    "preconditioned_sharpness_error",
    *(each for thresholds in THRESHOLDS.values() for each in thresholds),
)


def _columns(panels: int) -> int:
    """Return the panels per row: three, unless the last row would then have only one.

    >>> [_columns(panels) for panels in (1, 2, 3, 4, 6, 7, 10)]
    [1, 2, 3, 2, 3, 4, 4]
    """
    if panels <= _COLUMNS or panels % _COLUMNS != 1:
        return min(panels, _COLUMNS)
    return 2 if panels == _COLUMNS + 1 else _COLUMNS + 1


def _title(words: str, letters: int) -> str:
    r"""Wrap a title into as few lines as possible, of about equal length.

    >>> _title("cosine of the gradients along it", 31)
    'cosine of the\ngradients along it'
    """
    fewest = len(textwrap.wrap(words, letters))
    widths = range(1, letters + 1)
    lines = (textwrap.wrap(words, width, break_long_words=False) for width in widths)
    return "\n".join(next((each for each in lines if len(each) == fewest), [words]))


def _name_layers(figure: Figure, panels: Mapping[str, Axes], results: xr.Dataset) -> None:
    """Draw one legend per kind of layer, from the panel that shows most layers.

    The figure grows by the rows of the legends. Two legends are side by side below the panels if
    both fit, else one is above.
    """
    kinds = {
        kind: [axes for name, axes in panels.items() if kind in results[name].dims]
        for kind in _LAYER_KINDS
    }
    entries = {kind: max(map(legend_entries, own), key=len) for kind, own in kinds.items() if own}
    entries = {kind: each for kind, each in entries.items() if each}
    width = figure.get_figwidth() * 72 / _SIZE / max(len(entries), 1)
    beside = all(_legend_columns(list(each), width) for each in entries.values())
    width = width if beside else width * len(entries)
    rows = []
    for kind, each in entries.items():
        columns = max(_legend_columns(list(each), width), 1)
        drawn = max(len(axes.lines) for axes in kinds[kind])
        title = f"{len(each)} of {drawn} " * (len(each) < drawn) + dimension_name(kind)
        named_legend(figure, each, loc=_POSITIONS[kind][beside], ncols=columns, title=title)
        rows.append(1 - (-len(each) // columns))
    height = max(rows, default=0) if beside else sum(rows)
    figure.set_figheight(figure.get_figheight() + _ROW * height)


def _legend_columns(labels: Sequence[str], width: float) -> int:
    """Return how many labels fit into a row of a width in font sizes; 0 if not even one does."""
    widest = _LETTER * max(map(len, labels), default=0) + _KEY
    return min(len(labels), _LEGEND_COLUMNS, int(width // widest))
