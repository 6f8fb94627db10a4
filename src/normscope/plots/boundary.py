"""The critical learning rate over gamma: measured brackets and the theory's lines."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from normscope.plots.axes import logarithmic_axis
from normscope.plots.phase_diagram import write_settings
from normscope.plots.style import new_figure
from normscope.plots.theory_lines import draw_lines

__all__ = ["boundary"]


def boundary(results: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw the critical learning rate of every gamma and seed, with the theory's lines.

    Args:
        results: as ``normscope.sweeps.boundary`` returns it: ``critical_learning_rate``, ``low``
            and ``high`` (gamma, seed) and ``theory`` (closure, gamma).
        axes: where to draw; None: a new figure, with the settings written on it.

    Returns:
        The axes drawn on.
    """
    if axes is None:
        figure = new_figure(width=6.4, height=4.8)
        axes = figure.subplots()
        write_settings(figure, results)
    results = results.sortby("gamma")
    for number, seed in enumerate(results["seed"].values):
        one = results.sel(seed=seed)
        middle = one["critical_learning_rate"].values
        spread = np.abs(np.stack([middle - one["low"].values, one["high"].values - middle]))
        spread = np.where(np.isfinite(spread), spread, 0.0)
        label = "measured" if number == 0 else None
        axes.errorbar(
            middle, one["gamma"], xerr=spread, fmt="o", ms=4, color="#333333", label=label
        )
    draw_lines(axes, results["theory"], "gamma")
    logarithmic_axis(axes, "x")
    axes.set_xlabel(r"critical learning rate $\eta_*$")
    axes.set_ylabel(r"$\gamma$")
    axes.legend(frameon=False)
    return axes
