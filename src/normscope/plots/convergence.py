"""Convergence of optimizers on a logarithmic axis, with their bounds."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from normscope.plots.axes import logarithmic_axis
from normscope.plots.style import new_axes, new_figure

Array = NDArray[np.float64]

_FLOOR = 1e-40  # smaller values are not drawn


def draw_gap(gap: Array, bound: Array | None, label: str, axes: Axes | None = None) -> Axes:
    """Draw the gap of an optimizer over its steps, and the bound in the same colour, dashed.

    Args:
        gap: at every step.
        bound: at every step, or None.
        label: for the legend.
        axes: to draw on; None for a new figure.

    Returns:
        The axes drawn on.
    """
    axes = new_axes(axes)
    steps = np.arange(len(gap))
    (line,) = axes.plot(steps, np.where(gap > _FLOOR, gap, np.nan), label=label)
    if bound is not None:
        shown = np.where(bound > _FLOOR, bound, np.nan)
        axes.plot(steps, shown, "--", color=line.get_color(), label=f"{label}, bound", lw=1)
    logarithmic_axis(axes, "y")
    axes.set(xlabel="step", ylabel="gap")
    axes.legend(frameon=False)
    return axes


def least_squares_figure(results: xr.Dataset) -> Figure:
    """Draw the gap by method for each condition number, and the decrease by learning rate.

    Args:
        results: as the experiment kohler2018/ols returns it.

    Returns:
        The figure.
    """
    count = results.sizes["condition"]
    figure = new_figure(3.2 * (count + 1), 3.4)
    panels = figure.subplots(1, count + 1)
    for panel, condition in zip(panels, results["condition"].values, strict=False):
        here = results.sel(condition=condition).isel(seed=0)
        for method in results["optimizer"].values:
            bound = here["bound"].values if method == "gdnp" else None
            draw_gap(here["gap"].sel(optimizer=method).values, bound, str(method), panel)
        panel.set_title(f"condition {condition:g}")
        panel.get_legend().set_visible(condition == results["condition"].values[0])
    last = panels[-1]
    for method in ("gd", "bn_gd"):
        fall = results["fall"].sel(tried=method).isel(condition=0).max("seed")
        last.plot(results["factor"], np.clip(fall, 1e-20, 1e20), "o-", label=method)
    last.axhline(1, color="grey", lw=0.8)
    logarithmic_axis(last, "xy")
    last.set(xlabel="learning rate x 2L", ylabel="last / first excess")
    last.set_title(f"condition {results['condition'].values[0]:g}")
    last.legend(frameon=False)
    return figure


def halfspace_figure(results: xr.Dataset) -> Figure:
    """Draw the three inequalities of the halfspace problem for each loss.

    Args:
        results: as the experiment kohler2018/halfspace returns it.

    Returns:
        The figure.
    """
    figure = new_figure(9.6, 3.2 * results.sizes["loss"])
    panels = figure.subplots(results.sizes["loss"], 3, squeeze=False)
    for row, loss in zip(panels, results["loss"].values, strict=True):
        here = results.sel(loss=loss).isel(seed=0)
        for panel, part in zip(row, ("direction", "length", "whole"), strict=True):
            draw_gap(here[f"{part}_left"].values, here[f"{part}_right"].values, part, panel)
            panel.set_title(f"{loss}: {part}")
            panel.set_ylabel("squared gradient")
    return figure


def units_figure(results: xr.Dataset) -> Figure:
    """Draw each hidden unit's squared gradient with its bound, and the units' angle to the line.

    Args:
        results: as the experiment kohler2018/mlp returns it.

    Returns:
        The figure.
    """
    figure = new_figure(9.0, 3.6)
    left, right = figure.subplots(1, 2)
    first = results.isel(seed=0)
    for unit in results["unit"].values:
        here = first.sel(unit=unit)
        draw_gap(here["gradient"].values, here["bound"].values, f"unit {unit}", left)
    left.set_ylabel("squared gradient in the norm of S^-1")
    for number, name in enumerate(("from_zero", "joint")):
        off = results[f"off_line_{name}"].values.ravel()
        label = name.replace("_", " ")
        right.plot(np.full(off.shape, number), np.maximum(off, 1e-16), "o", label=label, alpha=0.6)
    logarithmic_axis(right, "y")
    right.set(ylabel="1 - cos to the line of S^-1 u", xlim=(-0.5, 1.5))
    right.set_xticks([0, 1], ["unit by unit from zero", "joint minimum"])
    return figure
