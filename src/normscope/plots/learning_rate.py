"""Learning rates on one axis: what is safe, predicted, verified, and the runs that decided."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import new_figure

_MARKS = {
    "safe": ("safe", "#009E73"),
    "recommended": ("recommended", "#0072B2"),
    "by_theory": ("by theory", "#CC79A7"),
    "by_curvature": ("by curvature", "#E69F00"),
    "limit": ("limit", "#D55E00"),
}


def learning_rates(advice: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw the runs, worst loss against learning rate, and the rates of the advice as lines.

    Args:
        advice: as ``Advice.to_xarray`` returns it; without runs only the lines are drawn.
        axes: where to draw; None for a new figure.

    Returns:
        The axes drawn on.
    """
    axes = new_figure().subplots() if axes is None else axes
    fixed = advice.isel(run=np.flatnonzero(~advice["is_ramp"].values.astype(bool)))
    for unstable, marker, label in ((False, "o", "stable run"), (True, "x", "unstable run")):
        runs = fixed.isel(run=np.flatnonzero(fixed["unstable"].values.astype(bool) == unstable))
        if runs.sizes["run"]:
            worst = np.nan_to_num(runs["worst"].values, nan=np.inf, posinf=1e3)
            axes.plot(runs["rate"], np.minimum(worst, 1e3), marker, color="black", label=label)
    for name, (label, colour) in _MARKS.items():
        if np.isfinite(advice.attrs[name]):
            axes.axvline(advice.attrs[name], color=colour, label=label)
    low, high = advice.attrs["low"], advice.attrs["high"]
    if np.isfinite(high) and low > 0:
        axes.axvspan(low, high, color="#D55E00", alpha=0.12, lw=0)
    growth = advice.attrs.get("growth_limit", np.nan)
    if fixed.sizes["run"] and np.isfinite(growth):
        label = f"unstable beyond {growth:g}"
        axes.axhline(growth, color="black", lw=0.8, ls=":", label=label)
    logarithmic_axis(axes, "xy")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("largest loss over the first")
    axes.legend(frameon=False, fontsize="small")
    return axes
