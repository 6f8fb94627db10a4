"""The tour at one glance: how large a learning rate, and what it is worth in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normscope.plots.axes import logarithmic_axis
from normscope.plots.names import name_of
from normscope.plots.rate_limits import rate_limits
from normscope.plots.step_axis import whole_steps
from normscope.plots.style import colour_of, new_figure

__all__ = ["SIZE", "overview"]

SIZE = (12.0, 3.4)  # inches: below its findings it fits the first screen of the demo's page


def overview(results: xr.Dataset) -> Figure:
    """Draw three panels: learning-rate limits, training at half of each, and all at one rate.

    Args:
        results: of the experiment "tour".

    Returns:
        The figure.
    """
    figure = new_figure(*SIZE)
    left, own, shared = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
    rate_limits(results, left)
    left.set_title("Where training breaks", loc="left", fontsize=11)
    draw_trainings(own, results, "")
    own.set_title("Each at half its own limit", loc="left", fontsize=11)
    own.set_ylabel("training loss")
    draw_trainings(shared, results, "shared_")
    rate = float(results["shared_rate"])
    shared.set_title(f"All at {rate:.3g}, half the largest", loc="left", fontsize=11)
    return figure


def draw_trainings(axes: Axes, results: xr.Dataset, prefix: str) -> None:
    """Draw training losses: a thin line for each seed, the median thick, a cross at a divergence.

    Args:
        axes: where to draw.
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
        axes.plot(steps, middle, lw=1.4, label=name_of(norm), **style)
    logarithmic_axis(axes, "y")
    axes.set_xlabel("step")
    whole_steps(axes)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_ends(
    axes: Axes, steps: NDArray[np.int64], losses: NDArray[np.float64], style: dict[str, Any]
) -> None:
    """The runs that diverged, each to the last loss that was a number."""
    for run in losses.T:
        seen = np.flatnonzero(np.isfinite(run))
        axes.plot(steps[seen], run[seen], lw=1.2, **style)
        axes.plot(steps[seen[-1:]], run[seen[-1:]], "x", ms=8, mew=2, **style)
