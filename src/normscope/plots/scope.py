"""All that a scope measured, one panel for each quantity."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from functools import partial

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.errors import StateError
from normscope.plots.axes import logarithmic_axis
from normscope.plots.bands import band
from normscope.plots.layer_legends import name_layers
from normscope.plots.linear_axis import linear_labels
from normscope.plots.probe_layers import layer_lines
from normscope.plots.quantities import BANDS, quantity_name
from normscope.plots.step_axis import whole_steps
from normscope.plots.style import new_figure

__all__ = ["scope_figure"]

_Drawing = Callable[[xr.DataArray, Axes], object]
_WIDE = 30.0  # a curve that spans more times than this has a logarithmic axis


def _curve(values: xr.DataArray, axes: Axes) -> None:
    known = values.dropna("step")
    axes.plot(known["step"].values, known.values, ".-", lw=1)
    finite = known.values[np.isfinite(known.values)]
    linear_labels(axes)
    if finite.size and finite.min() > 0 and finite.max() > _WIDE * finite.min():
        logarithmic_axis(axes, "y")
    axes.set_xlabel("step")
    whole_steps(axes)


def _first_comparison(values: xr.DataArray, axes: Axes) -> None:
    comparison = values.isel(comparison=0)
    layer_lines(comparison, axes, dimension="norm_layer", logarithmic=True, legend=False)


_layers = partial(layer_lines, legend=False)
_layers_log = partial(layer_lines, logarithmic=True, legend=False)
_PANELS: dict[str, _Drawing] = {
    "loss": _curve,
    **dict.fromkeys(BANDS, band),
    "effective_smoothness": _curve,
    "local_smoothness": _curve,
    "top_eigenvalue": _curve,
    "shift_distance": _layers_log,
    "shift_cosine": _layers,
    "gradient_norm": _layers_log,
    "activation_mean_change": _layers_log,
    "activation_variance_change": _layers_log,
    "mean_gap": _first_comparison,
    "spread_gap": _first_comparison,
}

_COLUMNS = 3
_WIDTHS = {4: 2.8}  # inches of a panel in a row of so many, else 3.4
_TITLE_WIDTH = 11.2  # letters for each inch of a panel


def scope_figure(results: xr.Dataset) -> Figure:
    """Draw what a scope measured.

    Args:
        results: as ``Scope.results`` gives it.

    Returns:
        A figure with a panel for each quantity that has values.

    Raises:
        StateError: if nothing was measured.
    """
    shown = [name for name in _PANELS if name in results and bool(results[name].notnull().any())]
    if not shown:
        raise StateError("there is nothing to draw: no step was measured with a finite value.")
    columns = _columns(len(shown))
    rows = -(-len(shown) // columns)
    width = _WIDTHS.get(columns, 3.4)
    figure = new_figure(width * columns, 2.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, name in zip(panels, shown, strict=False):
        _PANELS[name](results[name], axes)
        axes.set_title(_title(quantity_name(name), int(_TITLE_WIDTH * width)), fontsize="medium")
    for axes in panels[len(shown) :]:
        axes.remove()
    name_layers(figure, {name: axes for axes, name in zip(panels, shown, strict=False)}, results)
    return figure


def _columns(panels: int) -> int:
    """Panels in a row: three, unless the last row then had but one.

    >>> [_columns(panels) for panels in (1, 2, 3, 4, 6, 7, 10)]
    [1, 2, 3, 2, 3, 4, 4]
    """
    if panels <= _COLUMNS or panels % _COLUMNS != 1:
        return min(panels, _COLUMNS)
    return 2 if panels == _COLUMNS + 1 else _COLUMNS + 1


def _title(words: str, letters: int) -> str:
    r"""Words in as few lines as hold them, and those about equally long.

    >>> _title("cosine of the gradients along it", 31)
    'cosine of the\ngradients along it'
    """
    fewest = len(textwrap.wrap(words, letters))
    widths = range(1, letters + 1)
    lines = (textwrap.wrap(words, width, break_long_words=False) for width in widths)
    return "\n".join(next((each for each in lines if len(each) == fewest), [words]))
