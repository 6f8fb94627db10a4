"""Learning rates of an advice with its short runs, and of several normalizations compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normscope.plots.axes import logarithmic_axis, step_axis
from normscope.plots.labels import add_values, label_ends
from normscope.plots.style import (
    INK,
    annotate,
    colour_of,
    hide_spines,
    marker_key,
    new_axes,
    new_figure,
)
from normscope.text import format_number

_MARKS = {
    "curvature_bound": ("curvature bound", "#009E73", "-"),
    "recommended": ("recommended", "#0072B2", "-"),
    "limit": ("limit", "#D55E00", "-"),
    # dashed and drawn last, so that the limit shows between the dashes if they coincide
    "predicted": ("predicted", "#A67300", "--"),
    "theory": ("theory", "#CC79A7", "--"),
}
_REGIONS = {"stable": ("#009E73", "#006B4E"), "unstable": ("#D55E00", "#A34700")}  # area, name
_HIGHEST = 1e3  # losses beyond it, and those that are not finite, are drawn here
_LABEL_ROW = 12.5  # points of a row of labels above the axes
_MARGIN = 2.5  # factor of the horizontal axis beyond the outermost rate


def learning_rates(advice: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw the rates of an advice as lines over stable and unstable regions, with its runs.

    Below the interval of the limit the background is that of stable training, above it that of
    unstable training; the interval itself is blank. Runs are at their largest loss over the first.

    Args:
        advice: as ``Advice.to_xarray`` returns it; without runs there is no vertical axis.
        axes: to draw on; None for a new figure.

    Returns:
        The axes drawn on; lines are named above them, runs in a legend below.
    """
    fixed = advice.isel(run=np.flatnonzero(~advice["is_ramp"].values.astype(bool)))
    has_runs = bool(fixed.sizes["run"])
    axes = new_axes(axes, height=4.2 if has_runs else 2.2)
    marks = {name: advice.attrs[name] for name in _MARKS if np.isfinite(advice.attrs[name])}
    logarithmic_axis(axes, "x")
    axes.set_xlabel("learning rate")
    rates = [*marks.values(), *fixed["rate"].values, advice.attrs["low"], advice.attrs["high"]]
    known = [rate for rate in rates if 0 < rate < np.inf]
    axes.set_xlim(min(known) / _MARGIN, max(known) * _MARGIN)
    _shade(axes, advice.attrs["low"], advice.attrs["high"])
    _draw_marks(axes, marks)
    hide_spines(axes)
    if has_runs:
        _draw_runs(axes, fixed, advice.attrs.get("growth_limit", np.nan))
        below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 3}
        axes.legend(frameon=False, fontsize="small", **below)
    else:
        axes.set_yticks([])
    return axes


def trial_losses(choice: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw the loss of short trials against the learning rate, and the rate that was chosen.

    Args:
        choice: ``loss`` by ``rate``, NaN where a run failed; attributes ``chosen`` and ``steps``.
        axes: to draw on; None for a new figure.

    Returns:
        The axes drawn on.
    """
    axes = new_axes(axes, height=3.2)
    known = choice.where(np.isfinite(choice["loss"]), drop=True)
    axes.plot(known["rate"], known["loss"], "o-", color=INK)
    _, colour, style = _MARKS["recommended"]
    axes.axvline(choice.attrs["chosen"], color=colour, ls=style, label="recommended")
    logarithmic_axis(axes, "x")
    axes.set(xlabel="learning rate", ylabel=f"loss after {choice.attrs['steps']} steps")
    hide_spines(axes)
    axes.legend(frameon=False, fontsize="small")
    return axes


def _shade(axes: Axes, low: float, high: float) -> None:
    """Shade and name the stable region below an interval and the unstable one above it."""
    first, last = axes.get_xlim()
    for name, start, end in (("stable", first, low), ("unstable", high, last)):
        if not first <= start < end <= last:
            continue  # the interval has no such end
        area, letters = _REGIONS[name]
        axes.axvspan(start, end, color=area, alpha=0.12, lw=0, label=f"_{name}")
        middle, place = np.sqrt(start * end), axes.get_xaxis_transform()
        axes.text(middle, 0.93, name, transform=place, color=letters, ha="center", va="top")


def _draw_marks(axes: Axes, marks: dict[str, float]) -> None:
    """Draw a line for each rate, named above the axes; lines further left are named higher."""
    rising = sorted(marks, key=marks.__getitem__, reverse=True)
    for name, rate in marks.items():
        label, colour, style = _MARKS[name]
        axes.axvline(rate, color=colour, ls=style, lw=1.6, label=f"_{label}")
        height = 3 + _LABEL_ROW * rising.index(name)
        arrow = {"arrowstyle": "-", "color": colour, "lw": 1, "shrinkA": 0, "shrinkB": 0}
        text, top = f"{label} {format_number(rate)}", axes.get_xaxis_transform()
        annotate(axes, text, (rate, 1.0), top, 3, dy=height, color=colour)
        annotate(axes, "", (rate, 1.0), top, 0, dy=height + 9, arrowprops=arrow)


def _draw_runs(axes: Axes, runs: xr.Dataset, growth_limit: float) -> None:
    """Draw the runs at fixed rates, and the growth above which a run is unstable."""
    unstable, died = (runs[name].values.astype(bool) for name in ("unstable", "died"))
    kinds = {
        "stable run": ("o", ~unstable & ~died),
        "unstable run": ("x", unstable),
        "run whose outputs became constant": ("s", died & ~unstable),
    }
    for label, (marker, chosen) in kinds.items():
        kind = runs.isel(run=np.flatnonzero(chosen))
        if kind.sizes["run"]:
            worst = np.nan_to_num(kind["worst"].values, nan=np.inf, posinf=_HIGHEST)
            worst = np.minimum(worst, _HIGHEST)
            axes.plot(kind["rate"], worst, marker, color="black", label=label)
            add_values(axes, kind["rate"], worst, ("learning rate", "largest loss"), label)
    if np.isfinite(growth_limit):
        axes.axhline(growth_limit, color="black", lw=0.8, ls=":", label="_threshold")
        text, side = f"unstable\nbeyond {growth_limit:g}", axes.get_yaxis_transform()
        annotate(axes, text, (1.0, growth_limit), side, 4, va="center")
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
    label_ends(axes)


def _name_rows(axes: Axes, results: xr.Dataset, label: str) -> None:
    """Label one row per normalization, the first on top, and make the axis logarithmic."""
    logarithmic_axis(axes, "x")
    axes.set_xlabel(label)
    axes.set_yticks(range(results.sizes["norm"]), [str(norm) for norm in results["norm"].values])
    axes.set_ylim(results.sizes["norm"] - 0.5, -0.5)
    axes.grid(axis="x", which="major", alpha=0.25)


def _explain_markers(axes: Axes, markers: dict[str, str], hollow: set[str], *more: Line2D) -> None:
    """Draw a legend of the markers above the panel, in a colour of no normalization."""
    handles: list[Line2D] = []
    for name, marker in markers.items():
        fill = "white" if name in hollow else INK
        handles.append(marker_key(marker, name.replace("_", " "), mew=1.6, ms=7, mfc=fill))
    above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    columns = 2 if more else len(handles)
    axes.legend(handles=[*handles, *more], frameon=False, fontsize="small", ncols=columns, **above)
