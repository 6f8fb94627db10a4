"""Mean-field theory of one network: its layers, or its largest eigenvalue over gamma."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import new_figure
from normscope.plots.unanswered import say_unanswered

_TERM, _GRADIENT = "#0072B2", "#D55E00"


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
    names = [str(name) for name in results["layer"].values]
    axes.set_xticks(places, names, rotation=45 if max(map(len, names)) > 8 else 0)
    largest = max(float(results[name].max()) for name in ("term", "gradient"))
    axes.set_yscale("symlog", linthresh=max(largest * 1e-4, 1e-9))
    axes.set_ylim(bottom=0)


def _draw_sweep(axes: Axes, results: xr.Dataset) -> None:
    axes.set_xlabel(r"$\gamma$")
    axes.set_ylabel("eigenvalue of the Fisher matrix")
    known = results.where(results["lambda_max"].notnull())  # elsewhere the bound is rounding
    gamma = results["gamma"].values
    if not bool(known["lambda_max"].notnull().any()):
        axes.set_xlim(gamma.min() - 0.5, gamma.max() + 0.5)
        say_unanswered(axes, results.attrs.get("reason"))
        return
    axes.plot(gamma, known["lambda_max"], color=_TERM, label=r"$\lambda_{\max}$")
    axes.plot(gamma, known["lower_bound"], "--", color=_GRADIENT, label="lower bound, per output")
    logarithmic_axis(axes, "y")
