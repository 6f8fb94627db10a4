"""Learning-rate limits of several normalizations on one axis: verified, predicted, theory."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from normscope.plots.axes import logarithmic_axis
from normscope.plots.names import name_of
from normscope.plots.style import colour_of, new_figure

__all__ = ["rate_limits"]

_SPREAD = 0.5  # of a row's height, that its seeds take
_INK = "#555555"


def rate_limits(results: xr.Dataset, axes: Axes | None = None) -> Axes:
    """Draw a row for each normalization: the enclosed limit of every seed, and the predictions.

    Args:
        results: ``limit``, ``stable``, ``unstable``, ``predicted`` and ``theory`` over
            (norm, seed); not a number where there is no prediction.
        axes: where to draw; None for a new figure.

    Returns:
        The axes drawn on.
    """
    axes = new_figure().subplots() if axes is None else axes
    norms = [str(norm) for norm in results["norm"].values]
    for row, norm in enumerate(norms):
        _draw_row(axes, results.sel(norm=norm), row, colour_of(norm))
    logarithmic_axis(axes, "x")
    axes.set_xlabel("learning rate")
    axes.set_yticks(range(len(norms)), [name_of(norm) for norm in norms])
    axes.set_ylim(len(norms) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    for label, norm in zip(axes.get_yticklabels(), norms, strict=True):
        label.set_color(colour_of(norm))
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.legend(
        handles=_keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
        ncols=3,
        frameon=False,
        fontsize="small",
        handletextpad=0.3,
        columnspacing=1.0,
    )
    return axes


def _draw_row(axes: Axes, row: xr.Dataset, place: int, colour: str) -> None:
    seeds = row.sizes["seed"]
    offsets = np.linspace(-_SPREAD / 2, _SPREAD / 2, seeds) if seeds > 1 else np.zeros(1)
    for number, offset in enumerate(offsets):
        one, height = row.isel(seed=number), place + offset
        limit, low, high = (float(one[name]) for name in ("limit", "stable", "unstable"))
        if low > 0 and np.isfinite(high):
            axes.plot(
                [low, high], [height] * 2, color=colour, lw=5, alpha=0.3, solid_capstyle="butt"
            )
        axes.plot(limit, height, "o" if np.isfinite(high) else ">", color=colour, ms=5)
        axes.plot(float(one["predicted"]), height, "D", color=colour, mfc="none", ms=5)
        axes.plot(float(one["theory"]), height, "^", color=colour, mfc="none", ms=6)


def _keys() -> list[Line2D]:
    marks = (("o", "verified"), ("D", "predicted"), ("^", "theory, an estimate"))
    return [
        Line2D(
            [],
            [],
            ls="",
            marker=marker,
            color=_INK,
            mfc=_INK if marker == "o" else "none",
            label=label,
        )
        for marker, label in marks
    ]
