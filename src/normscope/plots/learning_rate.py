"""Learning rates of an advice on one axis, with the short runs."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import new_figure

_MARKS = {
    "curvature_bound": ("curvature bound", "#009E73", "-"),
    "recommended": ("recommended", "#0072B2", "-"),
    "limit": ("limit", "#D55E00", "-"),
    # dashed and drawn last, so that the limit shows between the dashes if they coincide
    "predicted": ("predicted", "#E69F00", "--"),
    "theory": ("theory", "#CC79A7", "--"),
}
_HIGHEST = 1e3  # losses beyond it, and those that are not finite, are drawn here


def learning_rates(advice: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw the runs, worst loss against learning rate, and the rates of the advice as lines.

    Args:
        advice: as ``Advice.to_xarray`` returns it; without runs there is no vertical axis.
        axes: to draw on; None for a new figure.

    Returns:
        The axes drawn on; the legend is beside new axes, and inside given ones.
    """
    fixed = advice.isel(run=np.flatnonzero(~advice["is_ramp"].values.astype(bool)))
    has_runs = bool(fixed.sizes["run"])
    is_new = axes is None
    if axes is None:
        axes = new_figure(height=4.0 if has_runs else 2.0).subplots()
    for name, (label, colour, style) in _MARKS.items():
        if np.isfinite(advice.attrs[name]):
            axes.axvline(advice.attrs[name], color=colour, ls=style, label=label)
    low, high = advice.attrs["low"], advice.attrs["high"]
    if np.isfinite(high) and low > 0:
        label = "interval of the limit"
        axes.axvspan(low, high, color="#D55E00", alpha=0.12, lw=0, label=label)
    logarithmic_axis(axes, "x")
    axes.set_xlabel("learning rate")
    if has_runs:
        _draw_runs(axes, fixed, advice.attrs.get("growth_limit", np.nan))
    else:
        axes.set_yticks([])
    if is_new:  # beside the axes, which lines and runs may fill
        axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:  # the figure may have no room beside them
        axes.legend(fontsize="small")
    return axes


def _draw_runs(axes: Axes, runs: xr.Dataset, growth_limit: float) -> None:
    """Draw the runs at fixed rates, and the growth above which a run is unstable."""
    unstable, died = (runs[name].values.astype(bool) for name in ("unstable", "died"))
    kinds = {
        "stable run": ("o", ~unstable & ~died),
        "unstable run": ("x", unstable),
        "run in which the net died": ("s", died & ~unstable),
    }
    for label, (marker, chosen) in kinds.items():
        kind = runs.isel(run=np.flatnonzero(chosen))
        if kind.sizes["run"]:
            worst = np.nan_to_num(kind["worst"].values, nan=np.inf, posinf=_HIGHEST)
            worst = np.minimum(worst, _HIGHEST)
            axes.plot(kind["rate"], worst, marker, color="black", label=label)
    if np.isfinite(growth_limit):
        label = f"unstable beyond {growth_limit:g}"
        axes.axhline(growth_limit, color="black", lw=0.8, ls=":", label=label)
    logarithmic_axis(axes, "y")
    axes.set_ylabel("largest loss over the first")
