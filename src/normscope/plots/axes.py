"""Ticks and labels of axes: logarithmic, linear, and counted in steps."""

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
from matplotlib.ticker import (
    Formatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    ScalarFormatter,
)
from numpy.typing import NDArray

_PLAIN = (1e-3, 1e4)  # numbers of a logarithmic axis that are written without an exponent
_PLAIN_LINEAR = (1e-3, 1e5)  # largest number of a linear axis written without exponents
_SHORT_STEP = 1e6  # step numbers below it are always written in full
_FEWEST, _ENOUGH, _MOST = 3, 4, 7  # labels in view
_BETWEEN = {  # factors between one power and the next, by base
    10: ((1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)),
    2: ((1.0, 1.5), (1.0, 1.25, 1.5, 1.75)),
}
_FIRST, _LAST = -323, 307  # exponents of ten that a float can hold
_DIGITS, _MOST_DIGITS = 6, 15  # significant digits of a label, and of a float
_LETTER = 0.62  # width of a digit, in font sizes
_LINE = 1.2  # height of a line, in font sizes
_APART = 0.5  # least gap between two labels, in font sizes
_SIZE, _LENGTH = 10.0, 300.0  # font size and axis length in points, before anything is drawn


def logarithmic_axis(axes: Axes, which: Literal["x", "y", "xy"], base: int = 10) -> None:
    """Make an axis logarithmic, with at least three labels, as plain numbers where they are short.

    On the axis of a small figure there are two labels if three do not fit, and one if two do not.
    The labels follow the limits and the size of the figure whenever it is drawn.

    Args:
        axes: the axes to change.
        which: the horizontal axis, the vertical one, or both.
        base: of the powers that are labelled first.
    """
    for name in which:
        (axes.set_xscale if name == "x" else axes.set_yscale)("log", base=base)
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_locator(LogTicks(base))
        axis.set_major_formatter(LogLabels(base))
        if base != 10:
            axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())


def full_labels(axes: Axes) -> None:
    """Write the labels of a linear vertical axis in full: 0.99992, not 0.2 with +9.999e-1 above."""
    axes.yaxis.set_major_formatter(_LinearLabels())


def step_axis(axes: Axes) -> None:
    """Label the horizontal axis as training steps, with integer ticks if any is in view."""
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(_StepTicks("auto", integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(_StepLabels())


class LogLabels(Formatter):
    r"""Labels of a logarithmic axis: plain numbers, or powers if any is beyond 0.001 to 10000.

    >>> LogLabels().format_ticks([0.2, 0.6, 1.0])
    ['0.2', '0.6', '1']
    >>> LogLabels().format_ticks([1e-6, 1.0])[0]
    '$\\mathdefault{10^{-6}}$'

    Args:
        base: of the powers.
    """

    def __init__(self, base: int = 10) -> None:
        self.base = base

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of one value."""
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the labels of all ticks, all plain numbers or all powers."""
        digits = _label_digits(values)
        if _are_plain(values):
            return [f"{value:.{digits}g}" for value in values]
        return [_power_label(value, self.base, digits) for value in values]


class LogTicks(LogLocator):
    """Ticks of a logarithmic axis: powers, and numbers between them if powers are few.

    Args:
        base: of the powers.
    """

    def __init__(self, base: int = 10) -> None:
        super().__init__(base)
        self._powers = base
        self._labels = LogLabels(base)

    def __call__(self) -> Sequence[float]:
        """Return the ticks in view."""
        assert self.axis is not None
        low, high = self.axis.get_view_interval()
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        """Return the ticks between two limits: the fewest that are enough, else the most that fit.

        Args:
            vmin: one limit.
            vmax: the other.
        """
        low, high = sorted((vmin, vmax))
        if not (0 < low < high and math.isfinite(high)):
            return []
        best: list[float] = []
        choices = list(_tick_choices(low, high, self._powers))
        for ticks in choices:
            if len(ticks) <= len(best) or not self._fits(ticks, low, high):
                continue
            if len(best) >= _FEWEST and _are_plain(best) and not _are_plain(ticks):
                break  # a few plain numbers are easier to read than many powers
            best = ticks
            if len(best) >= (_ENOUGH if _are_plain(best) else _FEWEST):
                break
        return best if len(best) > 1 else self._pair(choices, low, high)

    def _pair(self, choices: Sequence[list[float]], low: float, high: float) -> list[float]:
        """Return the two ticks farthest apart that fit, else one."""
        several = sorted(
            (each for each in choices if len(each) > 1),
            key=lambda ticks: ticks[-1] / ticks[0],
            reverse=True,
        )
        pairs = ([each[0], each[-1]] for each in several)
        one = max(choices, key=len, default=[]) or [low]
        return next((pair for pair in pairs if self._fits(pair, low, high)), one[:1])

    def _fits(self, ticks: Sequence[float], low: float, high: float) -> bool:
        """Return whether the labels do not touch each other."""
        if len(ticks) < 2:
            return True
        length, size, horizontal = self._size()
        low, high = math.log(low), math.log(high)
        positions = (np.log(ticks) - low) / (high - low) * length
        letters = np.array([_label_width(each) for each in self._labels.format_ticks(ticks)])
        extent = letters * _LETTER * size if horizontal else np.full(len(ticks), _LINE * size)
        gaps: NDArray[np.float64] = np.diff(positions) - (extent[1:] + extent[:-1]) / 2
        return bool((gaps > _APART * size * (1 if horizontal else 0.3)).all())

    def _size(self) -> tuple[float, float, bool]:
        """Return the axis length and font size in points, and whether the axis is horizontal."""
        if not isinstance(self.axis, Axis):
            return _LENGTH, _SIZE, True
        horizontal = isinstance(self.axis, XAxis)
        box = self.axis.axes.get_window_extent()
        length = (box.width if horizontal else box.height) * 72 / self.axis.axes.figure.dpi
        default = rcParams["xtick.labelsize"] if horizontal else rcParams["ytick.labelsize"]
        size = self.axis.get_tick_params().get("labelsize", default)
        return length, float(FontProperties(size=size).get_size_in_points()), horizontal


class _LinearLabels(ScalarFormatter):
    """Numbers with the same number of decimals, or each with its power of ten."""

    def __init__(self) -> None:
        super().__init__(useOffset=False)
        self.set_scientific(False)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        largest = max(map(abs, values), default=0.0)
        if largest == 0.0 or _PLAIN_LINEAR[0] <= largest < _PLAIN_LINEAR[1]:
            return super().format_ticks(list(values))
        digits = _label_digits(values)
        return [_power_label(value, 10, digits) for value in values]


class _StepTicks(MaxNLocator):
    """Integers, also if only one is in view; if none is, numbers between two of them."""

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        low, high = sorted((vmin, vmax))
        first, last = math.ceil(low), math.floor(high)
        if first > last:
            return MaxNLocator(3, steps=[1, 2, 5, 10]).tick_values(low, high)
        return [float(first)] if first == last else super().tick_values(vmin, vmax)


class _StepLabels(Formatter):
    """Labels without an offset or a common factor at the end of the axis.

    >>> _StepLabels().format_ticks([0, 50_000]), _StepLabels().format_ticks([2.3, 2.4])
    (['0', '50000'], ['2.3', '2.4'])
    """

    def __call__(self, x: float, pos: int | None = None) -> str:
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        plain = [f"{x:.0f}" if x == round(x) else f"{x:.{_DIGITS}g}" for x in values]
        if max(map(abs, values), default=0.0) < _SHORT_STEP:
            return plain
        powers = [_power_label(value, 10, _MOST_DIGITS) for value in values]
        return min(plain, powers, key=lambda labels: max(map(_label_width, labels)))


def _tick_choices(low: float, high: float, base: int) -> Iterator[list[float]]:
    """Yield sets of ticks, sparse ones first: every k-th power, numbers between, evenly spaced."""
    first, last = (math.floor(math.log(end) / math.log(base)) for end in (low, high))
    least, most = (math.floor(each * math.log(10) / math.log(base)) for each in (_FIRST, _LAST))
    exponents = range(max(first - 1, least), min(last + 1, most) + 1)
    for stride in (100, 50, 20, 10, 5, 4, 3, 2, 1):
        powers = [float(base) ** each for each in exponents if each % stride == 0]
        inside = _within(powers, low, high)
        if len(inside) <= _MOST:
            yield inside
    if last - first > 3 or (base != 10 and len(inside) >= _FEWEST):
        return
    for factors in _BETWEEN.get(base, ()):
        ticks = [part * float(base) ** each for each in exponents for part in factors]
        yield _within([float(f"{tick:.12g}") for tick in ticks], low, high)
    for count in (3, 4, 5, 6):
        even = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        yield _within([float(f"{tick:.12g}") for tick in even], low, high)


def _within(ticks: Sequence[float], low: float, high: float) -> list[float]:
    margin = 1e-9 * min(math.log(high) - math.log(low), 1.0)
    inside = [tick for tick in ticks if low * (1 - margin) <= tick <= high * (1 + margin)]
    return list(dict.fromkeys(inside))


def _are_plain(values: Sequence[float]) -> bool:
    low, high = _PLAIN
    return all(low <= abs(value) <= high for value in values if value)


def _label_digits(values: Sequence[float]) -> int:
    """Return six, or the digits that show values to a hundredth of the gaps between them."""
    apart = np.diff(np.unique(values))
    off = 0.01 * float(apart.min()) if apart.size else math.inf
    for digits in range(_DIGITS, _MOST_DIGITS):
        if all(abs(float(f"{value:.{digits}g}") - value) < off for value in values):
            return digits
    return _MOST_DIGITS


def _power_label(value: float, base: int, digits: int) -> str:
    """Return a value as a power, or as a number times a power."""
    if value < 0:
        return _power_label(-value, base, digits).replace("{", "{-", 1)
    if value == 0:
        return "0"
    if base == 10 and value < sys.float_info.min:  # dividing by the power would overflow
        number, _, power = repr(float(f"{value:.{digits}g}")).partition("e")
        factor, exponent = float(number), int(power)
    else:
        exponent = math.floor(math.log(value) / math.log(base) + 1e-9)
        factor = float(f"{value / float(base) ** exponent:.{digits}g}")
    times = "" if factor == 1 else rf"{factor:.{digits}g}\times "
    return rf"$\mathdefault{{{times}{base}^{{{exponent}}}}}$"


def _label_width(label: str) -> float:
    """Return the width of a label in digits; those of an exponent are smaller."""
    if not label.startswith("$"):
        return len(label)
    plain = label.removeprefix(r"$\mathdefault{").removesuffix("}$").replace(r"\times ", "  ")
    number, _, exponent = plain.partition("^")
    return len(number) + 0.7 * len(exponent.strip("{}"))
