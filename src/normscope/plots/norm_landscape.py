"""The landscape along the gradient, one column for each normalization; covariate shift of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.axes import logarithmic_axis
from normscope.plots.names import name_of
from normscope.plots.step_axis import whole_steps
from normscope.plots.style import colour_of, new_figure

__all__ = ["norm_landscape", "norm_shift"]

_BANDS = {"loss": "loss along the gradient", "gradient_distance": "change of the gradient"}
_BEHIND = "#777777"


def norm_landscape(results: xr.Dataset) -> Figure:
    """Draw the bands of each normalization over that of the first, and all smoothnesses.

    Reference: santurkar2018, Figure 4.

    Args:
        results: ``loss_low``, ``loss_high``, ``gradient_distance_low``,
            ``gradient_distance_high`` and ``effective_smoothness`` over (norm, seed, step).

    Returns:
        The figure: two rows of bands, a row with the effective smoothness.
    """
    norms = [str(norm) for norm in results["norm"].values]
    figure = new_figure(width=max(2.1 * len(norms), 5.0), height=6.8)
    grid = figure.add_gridspec(3, len(norms), height_ratios=(1, 1, 1.1))
    for row, (variable, label) in enumerate(_BANDS.items()):
        panels = [figure.add_subplot(grid[row, column]) for column in range(len(norms))]
        _draw_bands(panels, results, norms, variable)
        for axes, norm in zip(panels, norms, strict=True):  # each is read alone on a phone
            axes.set_title(f"{name_of(norm)}\n{label}", color=colour_of(norm), fontsize=9)
    columns = max(len(norms) // 2, min(len(norms), 2))
    last = figure.add_subplot(grid[2, :columns])
    _draw_lines(last, results["effective_smoothness"], "effective smoothness")
    handles, labels = last.get_legend_handles_labels()
    if columns < len(norms):  # beside it there is room
        figure.legend(
            handles, labels, loc="lower center", bbox_to_anchor=(0.72, 0.08), frameon=False
        )
    else:
        last.legend(frameon=False, fontsize="small")
    return figure


def _draw_bands(
    panels: Sequence[Axes], results: xr.Dataset, norms: Sequence[str], variable: str
) -> None:
    """One band a panel, all on one scale, the first one's edges behind the others."""
    ends = [_finite(results[f"{variable}_{end}"]).median("seed") for end in ("low", "high")]
    steps = results["step"].values
    for axes, norm in zip(panels, norms, strict=True):
        if norm != norms[0]:
            for end in ends:
                axes.plot(steps, end.sel(norm=norms[0]), color=_BEHIND, lw=1.0, ls=":")
        low, high = (end.sel(norm=norm).values for end in ends)
        axes.fill_between(steps, low, high, color=colour_of(norm), alpha=0.35, lw=0)
        for edge in (low, high):
            axes.plot(steps, edge, color=colour_of(norm), lw=0.9)
        logarithmic_axis(axes, "y")
        axes.set_xlabel("step", fontsize="x-small")
        axes.tick_params(labelsize="x-small")
        axes.minorticks_off()
    bottom = min(axes.get_ylim()[0] for axes in panels)
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(bottom, top)


def norm_shift(results: xr.Dataset) -> Figure:
    """Draw cosine and l2 difference of the layers' gradients, before and after those below move.

    Reference: santurkar2018, Definition 2.1.

    Args:
        results: ``shift_cosine`` and ``shift_distance`` over (norm, seed, step, layer).

    Returns:
        The figure with two panels; means over all layers but the first, which none precedes.
    """
    figure = new_figure(width=9.6, height=3.6)
    left, right = figure.subplots(1, 2)
    later = results.isel(layer=slice(1, None))
    _draw_lines(left, later["shift_cosine"].mean("layer"), "cosine (1: no shift)", False)
    _draw_lines(right, later["shift_distance"].mean("layer"), r"$\ell_2$ difference")
    left.legend(frameon=False, fontsize="small")
    return figure


def _draw_lines(axes: Axes, curves: xr.DataArray, label: str, logarithmic: bool = True) -> None:
    """A thin line for each seed, the median thick."""
    for norm in map(str, curves["norm"].values):
        lines = curves.sel(norm=norm).transpose("step", "seed")
        known = _finite(lines) if logarithmic else lines.where(np.isfinite(lines))
        style: dict[str, Any] = {"color": colour_of(norm)}
        if lines.sizes["seed"] > 1:
            axes.plot(lines["step"], known.values, lw=0.5, alpha=0.35, **style)
        axes.plot(lines["step"], known.median("seed").values, lw=1.6, label=name_of(norm), **style)
    if logarithmic:
        logarithmic_axis(axes, "y")
    axes.set_xlabel("step")
    whole_steps(axes)
    axes.set_ylabel(label)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _finite(values: xr.DataArray) -> xr.DataArray:
    return values.where(np.isfinite(values) & (values > 0))
