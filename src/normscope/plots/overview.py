"""Overview of the demo: stability limits by normalization, and training at half of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normscope.plots.axes import logarithmic_axis, step_axis
from normscope.plots.labels import add_values, label_ends
from normscope.plots.names import name_of
from normscope.plots.style import (
    INK,
    WIDTH,
    colour_of,
    hide_spines,
    marker_key,
    new_axes,
    new_figure,
)
from normscope.text import format_number

_SPREAD = 0.5  # share of a row's height that its seeds take
_ROW = 0.42  # inches of a row of limits


def overview(results: xr.Dataset) -> Figure:
    """Draw three panels: learning-rate limits, training at half of each, and all at one rate.

    Args:
        results: as the experiment "tour" returns it.

    Returns:
        The figure.
    """
    figure = new_figure(13.0, 3.4)
    left, own, shared = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
    rate_limits(results, left)
    left.set_title("Where training breaks", loc="left", fontsize=11)
    _draw_trainings(own, shared, results)
    return figure


def limits_figure(results: xr.Dataset) -> Figure:
    """Draw the learning-rate limits of every normalization, with the predictions.

    Args:
        results: as for `rate_limits`.

    Returns:
        The figure.
    """
    figure = new_figure(5.0, 1.1 + _ROW * results.sizes["norm"])
    rate_limits(results, figure.subplots())
    return figure


def training_figure(results: xr.Dataset) -> Figure:
    """Draw training losses: each network at half its own limit, and all at half the largest.

    Args:
        results: as the experiment "tour" returns it.

    Returns:
        The figure with two panels.
    """
    figure = new_figure(WIDTH, 3.2)
    own, shared = figure.subplots(1, 2)
    _draw_trainings(own, shared, results)
    return figure


def _draw_trainings(own: Axes, shared: Axes, results: xr.Dataset) -> None:
    """Draw the training losses at half the own limits, and at half the largest of them."""
    _draw_training(own, results, "")
    own.set_title("Each at half its own limit", loc="left", fontsize=11)
    own.set_ylabel("training loss")
    _draw_training(shared, results, "shared_")
    rate = float(results["shared_rate"])
    shared.set_title(f"All at {rate:.3g}, half the largest", loc="left", fontsize=11)


def _draw_training(axes: Axes, results: xr.Dataset, prefix: str) -> None:
    """Draw training losses: a thin line per seed, a thick median, a cross where a run diverged.

    Args:
        axes: to draw on.
        results: ``training_loss`` (norm, seed, training_step) and ``outcome`` (norm, seed).
        prefix: of the two names.
    """
    for norm in map(str, results["norm"].values):
        losses = results[f"{prefix}training_loss"].sel(norm=norm)
        losses = losses.transpose("training_step", "seed")
        known = losses.where(np.isfinite(losses))
        steps = losses["training_step"].values
        style: dict[str, Any] = {"color": colour_of(norm)}
        diverged = (results[f"{prefix}outcome"].sel(norm=norm) == "diverged").values
        _draw_ends(axes, steps, known.values[:, diverged], style)
        if losses.sizes["seed"] > 1:
            axes.plot(steps, known.values, lw=0.5, alpha=0.3, **style)
        middle = known.median("seed", skipna=False).values
        label = f"{name_of(norm)}{' diverges' if np.isnan(middle[-1]) else ''}"
        axes.plot(steps, middle, lw=1.4, label=label, **style)
        add_values(axes, steps, middle, ("step", "training loss"), name_of(norm))
    logarithmic_axis(axes, "y")
    step_axis(axes)
    hide_spines(axes)
    label_ends(axes)


def _draw_ends(
    axes: Axes, steps: NDArray[np.int64], losses: NDArray[np.float64], style: dict[str, Any]
) -> None:
    """Draw the runs that diverged, each up to its last finite loss."""
    for run in losses.T:
        finite = np.flatnonzero(np.isfinite(run))
        axes.plot(steps[finite], run[finite], lw=1.2, **style)
        axes.plot(steps[finite[-1:]], run[finite[-1:]], "x", ms=8, mew=2, **style)


def rate_limits(results: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw a row for each normalization: the verified limit of every seed, and the predictions.

    At the right are the median limit, and its ratio to that without normalization.

    Args:
        results: ``limit``, ``stable``, ``unstable``, ``predicted`` and ``theory`` over
            (norm, seed); NaN where there is no prediction.
        axes: to draw on; None for a new figure.

    Returns:
        The axes drawn on.
    """
    axes = new_axes(axes)
    norms = [str(norm) for norm in results["norm"].values]
    for row, norm in enumerate(norms):
        _draw_row(axes, results.sel(norm=norm), row, colour_of(norm))
        place, colour = axes.get_yaxis_transform(), colour_of(norm)
        text = _limit_label(results, norm)
        axes.text(1.02, row, text, transform=place, color=colour, va="center", fontsize=10)
    logarithmic_axis(axes, "x")
    axes.set_xlabel("learning rate")
    axes.set_yticks(range(len(norms)), [name_of(norm) for norm in norms])
    axes.set_ylim(len(norms) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    for label, norm in zip(axes.get_yticklabels(), norms, strict=True):
        label.set_color(colour_of(norm))
    axes.tick_params(axis="y", length=0)
    hide_spines(axes, "top", "right", "left")
    marks = (("o", "verified limit"), ("D", "predicted"), ("^", "theory, an estimate"))
    axes.legend(
        handles=[
            marker_key(each, label, mfc=INK if each == "o" else "none") for each, label in marks
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=3,
        frameon=False,
        fontsize="small",
        handletextpad=0.3,
        columnspacing=1.0,
    )
    return axes


def _limit_label(results: xr.Dataset, norm: str) -> str:
    """Return the median limit, and its ratio to that without normalization.

    >>> limit = xr.DataArray([[0.1], [2.6]], [("norm", ["none", "batch"]), ("seed", [0])])
    >>> both = xr.Dataset({"limit": limit, "unstable": limit})
    >>> _limit_label(both, "batch"), _limit_label(both, "none")
    ('2.6 (26x)', '0.1')
    """
    median = results["limit"].median("seed")
    limit = float(median.sel(norm=norm))
    is_open = bool(np.isinf(results["unstable"].sel(norm=norm)).any())
    text = f"{'at least ' if is_open else ''}{format_number(limit)}"
    if norm == "none" or "none" not in results["norm"].values or is_open:
        return text
    return f"{text} ({format_number(limit / float(median.sel(norm='none')))}x)"


def _draw_row(axes: Axes, row: xr.Dataset, index: int, colour: str) -> None:
    seeds = row.sizes["seed"]
    offsets = np.linspace(-_SPREAD / 2, _SPREAD / 2, seeds) if seeds > 1 else np.zeros(1)
    for number, offset in enumerate(offsets):
        one, height = row.isel(seed=number), index + offset
        limit, low, high = (float(one[name]) for name in ("limit", "stable", "unstable"))
        if low > 0 and np.isfinite(high):
            axes.plot(
                [low, high], [height] * 2, color=colour, lw=5, alpha=0.3, solid_capstyle="butt"
            )
        axes.plot(limit, height, "o" if np.isfinite(high) else ">", color=colour, ms=5)
        axes.plot(float(one["predicted"]), height, "D", color=colour, mfc="none", ms=5)
        axes.plot(float(one["theory"]), height, "^", color=colour, mfc="none", ms=6)
        for name, words in (("limit", "limit"), ("predicted", "predicted"), ("theory", "theory")):
            value = float(one[name])
            whose = f"{name_of(str(row['norm'].values))}, seed {int(one['seed'])}"
            add_values(axes, [value], [height], ("", words), whose, [value])
