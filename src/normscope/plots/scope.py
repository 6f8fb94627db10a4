"""All that a scope measured, one panel for each quantity."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.errors import StateError
from normscope.plots.bands import band
from normscope.plots.probe_layers import layer_lines
from normscope.plots.style import new_figure

__all__ = ["scope_figure"]

_Drawing = Callable[[xr.DataArray, Axes], object]


def _curve(values: xr.DataArray, axes: Axes) -> None:
    known = values.dropna("step")
    axes.plot(known["step"].values, known.values, ".-", lw=1)
    axes.set_xlabel("step")


def _first_comparison(values: xr.DataArray, axes: Axes) -> None:
    comparison = values.isel(comparison=0)
    layer_lines(comparison, axes, dimension="norm_layer", logarithmic=True)


_layers_log = partial(layer_lines, logarithmic=True)
_PANELS: dict[str, tuple[str, _Drawing]] = {
    "loss": ("loss", _curve),
    "ray_loss": ("loss along the gradient", band),
    "gradient_distance": ("change of the gradient along it", band),
    "gradient_cosine": ("cosine of the gradients along it", band),
    "effective_smoothness": ("effective smoothness", _curve),
    "local_smoothness": ("local smoothness", _curve),
    "top_eigenvalue": ("top eigenvalue", _curve),
    "shift_distance": ("covariate shift, distance", _layers_log),
    "shift_cosine": ("covariate shift, cosine", layer_lines),
    "gradient_norm": ("gradient norm", _layers_log),
    "activation_mean_change": ("change of the mean", _layers_log),
    "activation_variance_change": ("change of the variance", _layers_log),
    "mean_gap": ("mean, batch to running", _first_comparison),
    "spread_gap": ("spread, batch to running", _first_comparison),
}

_COLUMNS = 3


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
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure = new_figure(3.4 * columns, 2.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, name in zip(panels, shown, strict=False):
        title, draw = _PANELS[name]
        draw(results[name], axes)
        axes.set_title(title, fontsize="medium")
    for axes in panels[len(shown) :]:
        axes.remove()
    return figure
