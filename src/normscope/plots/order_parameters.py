"""Mean-field theory of one network: its layers, or its largest eigenvalue over gamma."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import lone_marker, new_figure
from normscope.plots.unanswered import say_unanswered

_TERM, _GRADIENT = "#0072B2", "#D55E00"
_HEADROOM = 1.08  # of the frame over the highest bar or marker
_LETTER = 0.62  # width of a letter, and
_LINE = 1.6  # room of a slanted line, in sizes of the font
_SIZE = 10.0  # of letters, in points


def order_parameters(results: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw each layer's term of the bound and squared gradient; over a sweep, lambda_max.

    Args:
        results: as ``Prediction.to_xarray`` gives it: with a dimension gamma for a sweep.
        axes: where to draw; None for a new figure.

    Returns:
        The axes drawn on.
    """
    axes = new_figure().subplots() if axes is None else axes
    if "gamma" in results.dims:
        _draw_sweep(axes, results)
    else:
        _draw_layers(axes, results)
    axes.set_title(f"mean-field theory, {results.attrs['closure']}")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    return axes


def _draw_layers(axes: Axes, results: xr.Dataset) -> None:
    places = np.arange(results.sizes["layer"])
    axes.bar(places, results["term"], color=_TERM, label="term of the bound, $f_l$")
    axes.plot(places, results["gradient"], "o-", color=_GRADIENT, label="squared gradient")
    axes.set_xlabel("layer")
    axes.set_ylabel("term, squared gradient")
    _name_layers(axes, [str(name) for name in results["layer"].values])
    _scale_heights(axes, max(float(results[name].max()) for name in ("term", "gradient")))


def _scale_heights(axes: Axes, largest: float) -> None:
    """From zero to somewhat over the largest, as this axis has no margin once it has a limit."""
    axes.set_yscale("symlog", linthresh=max(largest * 1e-4, 1e-9))
    scale = axes.yaxis.get_transform()
    top = scale.inverted().transform([_HEADROOM * float(scale.transform([largest])[0])])
    axes.set_ylim(0, float(top[0]))


def _name_layers(axes: Axes, names: list[str]) -> None:
    """Names beside each other, slanted where they do not fit, and not of all layers if many."""
    width = axes.get_window_extent().width * 72 / axes.figure.dpi
    slanted = len(names) * (max(map(len, names)) * _LETTER + 1) * _SIZE > width
    every = math.ceil(len(names) * _LINE * _SIZE / width) if slanted else 1
    places = np.arange(len(names))
    axes.set_xticks(places, minor=True)
    if slanted:
        style: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(places[::every], names[::every], **style)
    else:
        axes.set_xticks(places, names)


def _draw_sweep(axes: Axes, results: xr.Dataset) -> None:
    axes.set_xlabel(r"$\gamma$")
    axes.set_ylabel("eigenvalue of the Fisher matrix")
    known = results.where(results["lambda_max"].notnull())  # elsewhere the bound is rounding
    gamma = results["gamma"].values
    if not bool(known["lambda_max"].notnull().any()):
        axes.set_xlim(gamma.min() - 0.5, gamma.max() + 0.5)
        say_unanswered(axes, results.attrs.get("reason"))
        return
    marker = lone_marker(gamma)
    axes.plot(gamma, known["lambda_max"], color=_TERM, marker=marker, label=r"$\lambda_{\max}$")
    ring: dict[str, Any] = {"marker": marker, "ms": 10, "mfc": "none", "color": _GRADIENT}
    axes.plot(gamma, known["lower_bound"], "--", label="lower bound, per output", **ring)
    logarithmic_axis(axes, "y")
