"""The style of all figures: sizes, colours, line styles, legends."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

WIDTH = 9.6  # inches of a figure that fills the column of a report
INK = "#555555"  # legend markers and notes that belong to no normalization
CLOSURE_DASHES = {"train": "-", "frozen": "--", "printed": ":"}
# Okabe and Ito's palette, which all kinds of colour vision tell apart.
_COLOURS = {
    "none": "#000000",
    "batch": "#D55E00",
    "noisy": "#CC79A7",
    "l1": "#009E73",
    "l2": "#56B4E9",
    "linf": "#E69F00",
    "layer": "#0072B2",
    "group": "#8C6D31",
    "rms": "#6A3D9A",
    "instance": "#999933",
    "dyt": "#882255",
}


def colour_of(norm: str) -> str:
    """Return the colour of a normalization; grey if it has none."""
    return _COLOURS.get(norm, "#777777")


def new_figure(width: float = 6.4, height: float = 4.0) -> Figure:
    """Return an empty figure that is not registered with pyplot."""
    return Figure(figsize=(width, height), layout="constrained")


def new_axes(axes: Axes | None, width: float = 6.4, height: float = 4.0) -> Axes:
    """Return the given axes, or those of a new figure if there are none."""
    return new_figure(width, height).subplots() if axes is None else axes


def lone_marker(values: Sized) -> str:
    """Return the marker of a line: a dot if it has one point, which would be invisible."""
    return "o" if len(values) == 1 else "None"


def annotate(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    coordinates: Any,
    dx: float,
    dy: float = 0.0,
    **style: Any,
) -> None:
    """Write a text some points to the right of a place and above it, also outside of the axes.

    Args:
        axes: to write on.
        text: may be empty, to draw an arrow alone.
        place: horizontal and vertical coordinate.
        coordinates: of the place, such as "axes fraction" or a transform.
        dx: points to the right.
        dy: points above.
        **style: of matplotlib's annotation.
    """
    style = {"fontsize": 9, "textcoords": "offset points", "annotation_clip": False, **style}
    axes.annotate(text, place, (dx, dy), xycoords=coordinates, **style)


def hide_spines(axes: Axes, *sides: str) -> None:
    """Hide the frame of axes at some sides, top and right if none are given."""
    for side in sides or ("top", "right"):
        axes.spines[side].set_visible(False)


def marker_key(marker: str, label: str, **style: Any) -> Line2D:
    """Return a legend handle that shows a marker without a line."""
    return Line2D([], [], ls="", marker=marker, label=label, **{"color": INK, **style})


def legend_entries(*panels: Axes) -> dict[str, Artist]:
    """Return the legend handles of several axes by label, each label once."""
    entries: dict[str, Artist] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    return entries


def named_legend(figure: Any, entries: Mapping[str, Artist], **options: Any) -> None:
    """Draw a figure's legend without a frame, of these handles by their labels."""
    figure.legend(list(entries.values()), list(entries), frameon=False, **options)


def legend_below(figure: Any, axes: Axes, columns: int = 4, **options: Any) -> None:
    """Draw the legend of one panel below all panels of a figure or subfigure."""
    entries = legend_entries(axes)
    named_legend(figure, entries, loc="outside lower center", ncols=columns, **options)
