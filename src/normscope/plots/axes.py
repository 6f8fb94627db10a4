"""Logarithmic axes of figures, with plain labels that do not overlap."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

__all__ = [
    "PlainLabels",
    "PlainPlaces",
    "label_digits",
    "label_letters",
    "label_power",
    "logarithmic_axis",
]

_PLAIN = (1e-3, 1e4)  # numbers that are read at a glance without an exponent
_FEWEST, _ENOUGH, _MOST = 3, 4, 7  # labels in view
_BETWEEN = {  # a power and the next, by their base
    10: ((1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)),
    2: ((1.0, 1.5), (1.0, 1.25, 1.5, 1.75)),
}
_FIRST, _LAST = -323, 307  # powers of ten that a number can hold
_DIGITS, _MOST_DIGITS = 6, 15  # of a label, and of a number that it can tell
_LETTER = 0.62  # width of a digit, in sizes of its font
_LINE = 1.2  # height of a line
_APART = 0.5  # between two labels
_SIZE = 10.0  # of letters and
_LENGTH = 300.0  # of an axis in points, where nothing is drawn yet


def logarithmic_axis(axes: Axes, which: Literal["x", "y", "xy"], base: int = 10) -> None:
    """Make an axis logarithmic, with three labels or more, as plain numbers where those are short.

    Where three do not fit beside each other, long numbers on the axis of a small figure, there are
    two, and one where two do not fit. The labels follow the limits and the size of the figure
    whenever it is drawn.

    Args:
        axes: whose axis it is.
        which: the horizontal axis, the vertical one, or both.
        base: of the powers that are marked first.
    """
    for name in which:
        (axes.set_xscale if name == "x" else axes.set_yscale)("log", base=base)
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_locator(PlainPlaces(base))
        axis.set_major_formatter(PlainLabels(base))
        if base != 10:
            axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())


class PlainLabels(Formatter):
    r"""Numbers as they are said: 0.6; powers on an axis that leaves 0.001 to 10000.

    >>> PlainLabels().format_ticks([0.2, 0.6, 1.0])
    ['0.2', '0.6', '1']
    >>> PlainLabels().format_ticks([1e-6, 1.0])[0]
    '$\\mathdefault{10^{-6}}$'

    Args:
        base: of the powers.
    """

    def __init__(self, base: int = 10) -> None:
        self.base = base

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The label of one value.

        Args:
            x: the value.
            pos: its number among the labels.
        """
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """The labels of all values, in one manner.

        Args:
            values: of the marks.
        """
        digits = label_digits(values)
        if _are_plain(values):
            return [f"{value:.{digits}g}" for value in values]
        return [label_power(value, self.base, digits) for value in values]


class PlainPlaces(LogLocator):
    """Where a logarithmic axis is marked: whole powers, and numbers between them if those are few.

    Args:
        base: of the powers.
    """

    def __init__(self, base: int = 10) -> None:
        super().__init__(base)
        self._powers = base
        self._labels = PlainLabels(base)

    def __call__(self) -> Sequence[float]:
        """The marks in view."""
        assert self.axis is not None
        low, high = self.axis.get_view_interval()
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        """The marks between two limits: the fewest that are enough, or else the most that fit.

        Args:
            vmin: one limit.
            vmax: the other.
        """
        low, high = sorted((vmin, vmax))
        if not (0 < low < high and math.isfinite(high)):
            return []
        best: list[float] = []
        choices = list(_choices(low, high, self._powers))
        for places in choices:
            if len(places) <= len(best) or not self._fits(places, low, high):
                continue
            if len(best) >= _FEWEST and _are_plain(best) and not _are_plain(places):
                break  # few plain numbers are read sooner than many powers
            best = places
            if len(best) >= (_ENOUGH if _are_plain(best) else _FEWEST):
                break
        return best if len(best) > 1 else self._pair(choices, low, high)

    def _pair(self, choices: Sequence[list[float]], low: float, high: float) -> list[float]:
        """Two marks as far apart as they are to be had, or one: no axis is without."""
        several = sorted((each for each in choices if len(each) > 1), key=_span, reverse=True)
        pairs = ([each[0], each[-1]] for each in several)
        one = max(choices, key=len, default=[]) or [low]
        return next((pair for pair in pairs if self._fits(pair, low, high)), one[:1])

    def _fits(self, places: Sequence[float], low: float, high: float) -> bool:
        """Whether the labels stand beside each other."""
        if len(places) < 2:
            return True
        length, size, lies = self._room()
        low, high = math.log(low), math.log(high)
        where = (np.log(places) - low) / (high - low) * length
        letters = np.array([label_letters(each) for each in self._labels.format_ticks(places)])
        extent = letters * _LETTER * size if lies else np.full(len(places), _LINE * size)
        gaps: NDArray[np.float64] = np.diff(where) - (extent[1:] + extent[:-1]) / 2
        return bool((gaps > _APART * size * (1 if lies else 0.3)).all())

    def _room(self) -> tuple[float, float, bool]:
        """Length of the axis and size of its letters in points, and whether it lies."""
        if not isinstance(self.axis, Axis):
            return _LENGTH, _SIZE, True
        lies = isinstance(self.axis, XAxis)
        box = self.axis.axes.get_window_extent()
        length = (box.width if lies else box.height) * 72 / self.axis.axes.figure.dpi
        usual = rcParams["xtick.labelsize"] if lies else rcParams["ytick.labelsize"]
        given = self.axis.get_tick_params().get("labelsize", usual)
        return length, float(FontProperties(size=given).get_size_in_points()), lies


def _choices(low: float, high: float, base: int) -> Iterator[list[float]]:
    """Sets of marks, sparse ones first: every so many powers, numbers between, evenly spaced."""
    first, last = (math.floor(math.log(end) / math.log(base)) for end in (low, high))
    least, most = (math.floor(each * math.log(10) / math.log(base)) for each in (_FIRST, _LAST))
    exponents = range(max(first - 1, least), min(last + 1, most) + 1)
    for stride in (100, 50, 20, 10, 5, 4, 3, 2, 1):
        powers = [float(base) ** each for each in exponents if each % stride == 0]
        seen = _within(powers, low, high)
        if len(seen) <= _MOST:
            yield seen
    if last - first > 3 or (base != 10 and len(seen) >= _FEWEST):
        return
    for inner in _BETWEEN.get(base, ()):
        marks = [part * float(base) ** each for each in exponents for part in inner]
        yield _within([float(f"{mark:.12g}") for mark in marks], low, high)
    for most in (3, 4, 5, 6):
        even = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        yield _within([float(f"{mark:.12g}") for mark in even], low, high)


def _span(places: Sequence[float]) -> float:
    return places[-1] / places[0]


def _are_plain(values: Sequence[float]) -> bool:
    low, high = _PLAIN
    return all(low <= abs(value) <= high for value in values if value)


def label_digits(values: Sequence[float]) -> int:
    """Six, or as many as tell the values apart, to a hundredth of what lies between them."""
    apart = np.diff(np.unique(values))
    off = 0.01 * float(apart.min()) if apart.size else math.inf
    for digits in range(_DIGITS, _MOST_DIGITS):
        if all(abs(float(f"{value:.{digits}g}") - value) < off for value in values):
            return digits
    return _MOST_DIGITS


def _within(places: Sequence[float], low: float, high: float) -> list[float]:
    room = 1e-9 * min(math.log(high) - math.log(low), 1.0)
    inside = [place for place in places if low * (1 - room) <= place <= high * (1 + room)]
    return list(dict.fromkeys(inside))


def label_power(value: float, base: int, digits: int) -> str:
    """A value as a power, or as a number times one."""
    if value < 0:
        return label_power(-value, base, digits).replace("{", "{-", 1)
    if value == 0:
        return "0"
    if base == 10 and value < sys.float_info.min:  # it has few digits, and its power fewer
        number, _, power = repr(float(f"{value:.{digits}g}")).partition("e")
        factor, exponent = float(number), int(power)
    else:
        exponent = math.floor(math.log(value) / math.log(base) + 1e-9)
        factor = float(f"{value / float(base) ** exponent:.{digits}g}")
    times = "" if factor == 1 else rf"{factor:.{digits}g}\times "
    return rf"$\mathdefault{{{times}{base}^{{{exponent}}}}}$"


def label_letters(label: str) -> float:
    """The width of a label in digits; those of an exponent are smaller."""
    if not label.startswith("$"):
        return len(label)
    plain = label.removeprefix(r"$\mathdefault{").removesuffix("}$").replace(r"\times ", "  ")
    number, _, exponent = plain.partition("^")
    return len(number) + 0.7 * len(exponent.strip("{}"))
