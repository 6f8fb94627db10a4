"""Names of lines at their ends, and the values that a report shows under the pointer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from normscope.plots.style import annotate

_SIZE = 9.0  # font size of a name in points
_LINE = 1.15  # height of a line, in font sizes
_INNER = 0.85  # share of the height of axes that is left to them once everything is drawn
_MOST_POINTS = 100  # values of a series


@dataclass(frozen=True)
class AxesValues:
    """Values of one series, in the coordinates of the axes.

    Args:
        name: of the series; "" if it has none.
        x: name of the horizontal axis.
        y: name of the value.
        places: horizontal and vertical coordinate of each.
        texts: both values of each, as text.
    """

    name: str
    x: str
    y: str
    places: NDArray[np.float64]
    texts: Sequence[tuple[str, str]]


_VALUES: WeakKeyDictionary[Axes, list[AxesValues]] = WeakKeyDictionary()


def label_ends(axes: Axes, size: float = _SIZE) -> None:
    """Write the label of every line at the right of the axes, at the height of its right end.

    Labels that would overlap are moved apart. To be called after the limits are final.

    Args:
        axes: lines without a label are left out.
        size: font size in points.
    """
    ends = [
        (line.get_label(), line.get_color(), height)
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
        and (height := _end_height(axes, line.get_xydata())) is not None
    ]
    ends.sort(key=lambda end: end[2])
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    points = axes.get_position().height * figure.get_figheight() * 72 * _INNER
    heights = _spread([height for *_, height in ends], size * _LINE / points)
    for (label, colour, _), height in zip(ends, heights, strict=True):
        style: dict[str, Any] = {"color": colour, "fontsize": size, "va": "center"}
        annotate(axes, str(label), (1.0, height), "axes fraction", 5, **style)


def _end_height(axes: Axes, points: object) -> float | None:
    """Return the height of a line's rightmost finite point, as a share of the axes."""
    places = np.asarray(points, dtype=float)
    finite = places[np.isfinite(places).all(1)]
    if not len(finite):
        return None
    shares = axes.transAxes.inverted().transform(axes.transData.transform(finite))
    return float(np.clip(shares[np.argmax(shares[:, 0]), 1], 0.0, 1.0))


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return heights in the same order at least a gap apart, as near as possible to the given.

    >>> _spread([0.2, 0.5, 0.5], 0.1)
    [0.2, 0.45, 0.55]
    """
    if not heights:
        return []
    steps = gap * np.arange(len(heights))
    found = isotonic_regression(np.asarray(heights) - steps).x + steps
    found -= max(float(found[-1]) - 1.0, 0.0)  # within the axes, from the top
    return [round(float(each), 6) for each in found]


def add_values(
    axes: Axes,
    x: Iterable[float],
    y: Iterable[float],
    names: tuple[str, str],
    name: str = "",
    shown: Iterable[float] | None = None,
) -> None:
    """Let a report show the values of a line or of markers under the pointer.

    Args:
        axes: they are drawn on.
        x: horizontal coordinates; of many, evenly spaced ones are kept.
        y: vertical coordinates; those that are not finite are left out.
        names: of the horizontal axis ("" to leave its value out) and of the value.
        name: of the series.
        shown: the value of each point, if it is not the vertical coordinate.
    """
    places = np.column_stack([np.asarray(list(x), float), np.asarray(list(y), float)])
    values = places[:, 1] if shown is None else np.asarray(list(shown), float)
    chosen = np.flatnonzero(np.isfinite(places).all(1))
    chosen = chosen[:: -(-len(chosen) // _MOST_POINTS) or 1]
    texts = [(f"{places[each, 0]:.4g}", f"{values[each]:.3g}") for each in chosen]
    found = AxesValues(name, *names, places[chosen], texts)
    _VALUES.setdefault(axes, []).append(found)


def values_of(axes: Axes) -> list[AxesValues]:
    """Return the values that were added to axes."""
    return _VALUES.get(axes, [])
