"""Learning rates of an advice with its short runs, and of several normalizations compared."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normscope.plots.axes import logarithmic_axis, step_axis
from normscope.plots.style import INK, colour_of, marker_key, new_figure

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


_RATES = {"recommended": "D", "limit": "o", "curvature_bound": "|"}  # markers
_MODES = {"train": "o", "frozen": "s", "eval": "^"}


def comparison(results: xr.Dataset) -> Figure:
    """Draw three panels: rates with their interval, eigenvalues by mode, loss against step.

    Rates and eigenvalues are points on a logarithmic axis, one row per normalization, so that
    ratios can be read off.

    Args:
        results: as ``Comparison.to_xarray`` returns it.

    Returns:
        The figure.
    """
    figure = new_figure(width=11.0, height=1.9 + 0.42 * max(results.sizes["norm"], 3))
    rates, curvature, training = figure.subplots(1, 3, width_ratios=(1.1, 0.9, 1.0))
    _draw_rates(rates, results)
    _draw_curvature(curvature, results)
    _draw_training(training, results)
    return figure


def _draw_rates(axes: Axes, results: xr.Dataset) -> None:
    for height, norm in enumerate(results["norm"].values):
        row, colour = results.sel(norm=norm), colour_of(norm)
        low, high = float(row["low"]), float(row["high"])
        if np.isfinite(low) and np.isfinite(high):
            axes.plot([low, high], [height, height], color=colour, lw=7, alpha=0.25, zorder=1)
        for name, marker in _RATES.items():
            value = float(row[name])
            if np.isfinite(value):
                filled = "white" if name == "recommended" else colour
                size = 13 if marker == "|" else 7
                axes.plot(value, height, marker, ms=size, mfc=filled, mec=colour, mew=1.6)
    interval = Line2D([], [], color=INK, lw=7, alpha=0.25, label="interval of the limit")
    _name_rows(axes, results, "learning rate")
    _explain_markers(axes, _RATES, {"recommended"}, interval)


def _draw_curvature(axes: Axes, results: xr.Dataset) -> None:
    for height, norm in enumerate(results["norm"].values):
        values = results["lambda_max"].sel(norm=norm)
        found = values.where(np.isfinite(values), drop=True)
        if found.size > 1:
            span = [float(found.min()), float(found.max())]
            axes.plot(span, [height, height], color=colour_of(norm), lw=1.2, alpha=0.5, zorder=1)
        for mode in found["mode"].values:
            filled = colour_of(norm) if mode == "train" else "white"
            value = float(found.sel(mode=mode))
            axes.plot(value, height, _MODES[mode], ms=7, mfc=filled, mec=colour_of(norm), mew=1.6)
    _name_rows(axes, results, "largest eigenvalue")
    _explain_markers(axes, _MODES, {"frozen", "eval"})


def _draw_training(axes: Axes, results: xr.Dataset) -> None:
    for norm in results["norm"].values:
        loss = results["loss"].sel(norm=norm)
        axes.plot(np.arange(loss.sizes["step"]), loss, color=colour_of(norm), label=norm)
    step_axis(axes)
    axes.set_ylabel("training loss")
    axes.set_title("trained at half the limit", fontsize="medium")
    logarithmic_axis(axes, "y")
    axes.legend(frameon=False, fontsize="small")


def _name_rows(axes: Axes, results: xr.Dataset, label: str) -> None:
    """Label one row per normalization, the first on top, and make the axis logarithmic."""
    logarithmic_axis(axes, "x")
    axes.set_xlabel(label)
    axes.set_yticks(range(results.sizes["norm"]), [str(norm) for norm in results["norm"].values])
    axes.set_ylim(results.sizes["norm"] - 0.5, -0.5)
    axes.grid(axis="x", which="major", alpha=0.25)


def _explain_markers(axes: Axes, markers: dict[str, str], hollow: set[str], *more: Line2D) -> None:
    """Draw a legend of the markers above the panel, in a colour of no normalization."""
    handles = [
        marker_key(
            marker, name.replace("_", " "), mew=1.6, ms=7, mfc="white" if name in hollow else INK
        )
        for name, marker in markers.items()
    ]
    axes.legend(
        handles=[*handles, *more],
        frameon=False,
        fontsize="small",
        ncols=2 if more else len(handles),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
    )
