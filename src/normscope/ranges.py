"""Ranges of numbers as strings: ``0.1:3:12`` (linear) and ``1e-3:1:16:log`` (logarithmic)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normscope.errors import InputError

__all__ = ["RANGE", "number_range", "range_text"]

RANGE = "first:last:count or first:last:count:log"
"""The syntax of a range."""

_FEWEST = 3  # fewer numbers are not shorter as a range


def number_range(text: str) -> list[float]:
    """Return evenly spaced numbers, both ends included; with ``:log`` on a logarithmic scale.

    >>> number_range("0.1:3:6")
    [0.1, 0.68, 1.26, 1.84, 2.42, 3.0]

    Raises:
        InputError: if the string is not a range, or a logarithmic one is not above zero.
    """
    first, last, count, is_logarithmic = _range_parts(text)
    if is_logarithmic and not (first > 0 and last > 0):
        raise InputError(f"a logarithmic range must be above 0, got {text!r}.")
    if count == 1:
        return [first]
    shares = [i / (count - 1) for i in range(1, count - 1)]
    if is_logarithmic:
        low, high = math.log10(first), math.log10(last)
        inner = [10 ** (low + (high - low) * share) for share in shares]
    elif math.isfinite(last - first):
        inner = [first + (last - first) * share for share in shares]
    else:  # the difference overflows
        inner = [first * (1 - share) + last * share for share in shares]
    # rounded: 0.1 and not 0.10000000000000002
    return [first, *(float(f"{value:.12g}") for value in inner), last]


def range_text(values: Sequence[object]) -> str | None:
    """Return the range that gives exactly these values; None if there is none.

    >>> range_text([0.01, 0.1, 1.0]), range_text([0.5, 1.0, 1.5]), range_text([1.0, 2.0, 4.5])
    ('0.01:1:3:log', '0.5:1.5:3', None)
    """
    floats = [float(value) for value in values if isinstance(value, float)]  # numpy's too
    numbers = [value for value in floats if math.isfinite(value)]
    if len(numbers) < max(len(values), _FEWEST):
        return None
    first, last = (repr(end).removesuffix(".0") for end in (numbers[0], numbers[-1]))
    even = f"{first}:{last}:{len(numbers)}"
    above_zero = min(numbers[0], numbers[-1]) > 0
    tried = (even, f"{even}:log") if above_zero else (even,)
    return next((text for text in tried if number_range(text) == numbers), None)


def _range_parts(text: str) -> tuple[float, float, int, bool]:
    parts = text.split(":")
    try:
        if len(parts) == 4 and parts.pop() != "log":
            raise ValueError(text)
        first, last, count = float(parts[0]), float(parts[1]), int(parts[2])
        if len(parts) != 3 or count < 1 or not (math.isfinite(first) and math.isfinite(last)):
            raise ValueError(text)
    except (ValueError, IndexError) as error:
        raise InputError(f"a range is {RANGE}, got {text!r}.") from error
    return first, last, count, text.count(":") == 3
