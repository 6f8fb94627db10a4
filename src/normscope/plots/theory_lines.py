"""The theory's critical learning rates as red lines, each with a name that says where it is."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

__all__ = ["OUTSIDE", "draw_lines", "name_lines_outside"]

OUTSIDE = " (off the picture)"
_DASHES = {"train": "-", "frozen": "--", "printed": ":"}
_COLOUR = "#D62728"
_SAME = 1e-3  # rates this close lie within the width of a line


def draw_lines(axes: Axes, lines: xr.DataArray, setting: str) -> None:
    """Draw the theory's critical rate by every closure, and half of the train closure's.

    Closures that agree, such as train and frozen of a net without batch statistics, are one line
    with both names: the legend has no entry that is hidden under another. A closure that has no
    value is neither drawn nor named.

    Args:
        axes: where to draw.
        lines: rates (closure, setting).
        setting: the name of the vertical axis.
    """
    for closures in _alike(lines):
        line = lines.sel(closure=closures[0])
        style = _DASHES.get(closures[0], "-.")
        label = f"theory, {' and '.join(closures)}"
        axes.plot(line, line[setting], style, color=_COLOUR, label=label)
    half = lines.sel(closure="train") / 2
    if bool(np.isfinite(half).any()):
        axes.plot(half, half[setting], "-", color=_COLOUR, lw=0.7, label="half of it, train")


def name_lines_outside(axes: Axes) -> None:
    """Say in the legend which lines lie beyond the borders.

    Args:
        axes: with the lines, and with its limits.
    """
    for line in axes.lines:
        path = line.get_path().transformed(line.get_transform())
        if not path.intersects_bbox(axes.bbox, filled=False):
            line.set_label(f"{line.get_label()}{OUTSIDE}")


def _alike(lines: xr.DataArray) -> list[list[str]]:
    """The closures that have values, those with the same ones together."""
    groups: list[list[str]] = []
    for closure in map(str, lines["closure"].values):
        rates = lines.sel(closure=closure).values
        if not np.isfinite(rates).any():
            continue
        for group in groups:
            other = lines.sel(closure=group[0]).values
            if np.allclose(rates, other, rtol=_SAME, atol=0.0, equal_nan=True):
                group.append(closure)
                break
        else:
            groups.append([closure])
    return groups
