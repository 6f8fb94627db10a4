"""Labels of linear axes that say the whole number: no offset, no factor at the axis' end."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import ScalarFormatter

from normscope.plots.axes import label_digits, label_power

__all__ = ["linear_labels"]

_PLAIN = (1e-3, 1e5)  # the largest number of an axis whose labels have no exponent


def linear_labels(axes: Axes) -> None:
    """Say every label of the vertical axis in full: 0.99992, not 0.2 with +9.999e-1 above.

    Args:
        axes: whose axis it is, linear.
    """
    axes.yaxis.set_major_formatter(_LinearLabels())


class _LinearLabels(ScalarFormatter):
    """Numbers with equally many decimals, or each with its power of ten."""

    def __init__(self) -> None:
        super().__init__(useOffset=False)
        self.set_scientific(False)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        largest = max(map(abs, values), default=0.0)
        if largest == 0.0 or _PLAIN[0] <= largest < _PLAIN[1]:
            return super().format_ticks(list(values))
        digits = label_digits(values)
        return [label_power(value, 10, digits) for value in values]
