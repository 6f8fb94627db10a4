"""Axes that count steps: whole numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import Formatter, MaxNLocator

from normscope.plots.axes import label_letters, label_power

__all__ = ["whole_steps"]

_SHORT = 1e6  # whole numbers below it are read as they are
_DIGITS, _MOST_DIGITS = 6, 15  # of numbers between whole ones, and of large ones


def whole_steps(axes: Axes) -> None:
    """Mark whole numbers only on the horizontal axis, if there is any in view.

    Args:
        axes: whose axis counts steps.
    """
    axes.xaxis.set_major_locator(_WholePlaces("auto", integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(_WholeLabels())


class _WholePlaces(MaxNLocator):
    """Whole numbers also where there is but one in view; between two of them, what there is."""

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        low, high = sorted((vmin, vmax))
        whole = range(math.ceil(low), math.floor(high) + 1)
        if not whole:
            return MaxNLocator(3, steps=[1, 2, 5, 10]).tick_values(low, high)
        return [float(whole[0])] if len(whole) == 1 else super().tick_values(vmin, vmax)


class _WholeLabels(Formatter):
    """Every label by itself, whole: none is left to a factor or an offset at the axis' end.

    >>> _WholeLabels().format_ticks([0, 50_000]), _WholeLabels().format_ticks([2.3, 2.4])
    (['0', '50000'], ['2.3', '2.4'])
    """

    def __call__(self, x: float, pos: int | None = None) -> str:
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        plain = [f"{x:.0f}" if x == round(x) else f"{x:.{_DIGITS}g}" for x in values]
        if max(map(abs, values), default=0.0) < _SHORT:
            return plain
        powers = [label_power(value, 10, _MOST_DIGITS) for value in values]
        return min(plain, powers, key=lambda labels: max(map(label_letters, labels)))
