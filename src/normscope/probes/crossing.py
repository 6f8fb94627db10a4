"""The first return to zero of a function that begins by falling, from few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

_Point: TypeAlias = tuple[float, float]  # argument, and the mean slope up to it

_GROWTH = 8.0  # largest ratio of one point to the next while none is known to be above zero
_ROUNDING = 1e-6  # relative; an end of the enclosure may be the zero itself
_MARGIN = 0.02  # relative distance of a point from the estimate, so that both sides come close


@dataclass(frozen=True)
class Crossing:
    """Where a function comes back to zero.

    Args:
        value: the estimate; 0 if the function does not fall at first; the largest argument tried
            if it was below zero at all.
        error: relative width of the enclosure; infinite if one of its sides was not found.
    """

    value: float
    error: float


def find_crossing(
    change: Callable[[float], float],
    slope: float,
    guess: float = 1.0,
    noise: float = 0.0,
    precision: float = 1 / 16,
    evaluations: int = 6,
) -> Crossing:
    """Return where a function f with f(0) = 0 comes back to zero from below.

    The mean slope f(s) / s has the same zero, and is linear for a quadratic f and known at 0. Its
    zero is interpolated, and the next point is chosen on the side of the farther end of the
    enclosure. A quadratic takes three evaluations, or two with a good guess.

    Args:
        change: f, for positive arguments; what is not finite counts as above zero.
        slope: f'(0).
        guess: first argument tried, positive.
        noise: magnitude below which values of f are rounding.
        precision: relative width of the enclosure at which the search ends.
        evaluations: the most of f.

    Returns:
        The zero and its error.

    >>> find_crossing(lambda s: s * (s - 3), slope=-3.0).value
    3.0
    """
    if not slope < 0:
        return Crossing(0.0, 0.0)
    low, high = 0.0, math.inf
    points: list[_Point] = [(0.0, slope)]
    point = max(guess, 16 * noise / -slope)  # shorter steps change f by less than rounding
    for _ in range(evaluations):
        mean = change(point) / point
        if mean < 0:
            low = point
        else:  # NaN too
            high = point
        points.append((point, mean))
        if high <= low * (1 + precision):
            break
        point = _next_point(points, low, high)
    error = high / low - 1 if low > 0 else math.inf
    return Crossing(low if math.isinf(high) else _zero(points, low, high), error)


def _next_point(points: Sequence[_Point], low: float, high: float) -> float:
    zero = _zero(points, low, high)
    if math.isinf(high):  # each extrapolation that fell short doubles the least growth
        growth = 1.1 if len(points) == 2 else min(2.0 ** (len(points) - 2), _GROWTH)
        return min(max(zero * (1 + _MARGIN), growth * low), _GROWTH**2 * low)
    is_low_far = low * high < zero**2
    point = zero * (1 - _MARGIN if is_low_far else 1 + _MARGIN)
    if high > _GROWTH * low:  # near a pole the interpolation says little
        least = high / _GROWTH**2 if low == 0 else low * (high / low) ** 0.25
        point = max(point, least)
    if low == 0 and len(points) > 2:  # an interpolation fell short already
        point = min(point, high / 2)
    return point if low < point < high else _middle(low, high)


def _middle(low: float, high: float) -> float:
    """Return the geometric mean of an enclosure; far below its upper end if the lower is 0."""
    return math.sqrt(low * high) if low > 0 else high / _GROWTH


def _zero(points: Sequence[_Point], low: float, high: float) -> float:
    """Return the zero inside an enclosure of the parabola or line through the nearest points."""
    finite = [point for point in points if math.isfinite(point[1])]
    nearest = sorted(finite, key=lambda point: abs(point[1]))[:3]
    for count in (3, 2):
        for zero in _polynomial_zeros(nearest[:count]) if len(nearest) >= count else ():
            if zero > 0 and low * (1 - _ROUNDING) <= zero <= high * (1 + _ROUNDING):
                return min(max(zero, low), high)
    return _GROWTH * low if math.isinf(high) else _middle(low, high)


def _polynomial_zeros(points: Sequence[_Point]) -> list[float]:
    """Return the real zeros of the polynomial through two or three points, in increasing order.

    >>> _polynomial_zeros([(0.0, -4.0), (1.0, -3.0), (3.0, 5.0)])
    [-2.0, 2.0]
    """
    (x0, y0), (x1, y1) = points[:2]
    first = (y1 - y0) / (x1 - x0)
    if len(points) == 2:
        return [x0 - y0 / first] if first else []
    x2, y2 = points[2]
    bend = ((y2 - y1) / (x2 - x1) - first) / (x2 - x0)
    if bend == 0:
        return _polynomial_zeros(points[:2])
    # y0 + (x - x0) (first + (x - x1) bend), as a parabola in x
    linear = first - bend * (x0 + x1)
    constant = y0 - first * x0 + bend * x0 * x1
    inside = linear**2 - 4 * bend * constant
    if inside < 0:
        return []
    larger = -(linear + math.copysign(math.sqrt(inside), linear)) / 2  # without cancellation
    return sorted({larger / bend, constant / larger if larger else 0.0})
