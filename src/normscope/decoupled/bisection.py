"""The length of the weights by bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Bisected", "bisect_length"]


@dataclass(frozen=True, slots=True)
class Bisected:
    """A zero of the slope between two ends.

    Args:
        length: the middle of the last interval, or an end of the allowed range.
        left: where the bisection began.
        right: where it began, on the other side.
        at_bound: the slope still points outwards at the end of the allowed range.
        halvings: of the interval.
        early: the slope was small enough before the interval was.
    """

    length: float
    left: float
    right: float
    at_bound: bool
    halvings: int
    early: bool = False


def bisect_length(
    slope: Callable[[float], float],
    guess: float,
    reach: float,
    bound: float,
    halvings: int,
    tolerance: float = 0.0,
) -> Bisected:
    """Where the slope passes from negative to positive, by bisection about a guess.

    The interval around the guess is doubled until it holds such a passage, then halved.

    Args:
        slope: derivative of the objective with respect to the length.
        guess: where to look first.
        reach: half the width of the first interval.
        bound: the length stays within -bound and bound.
        halvings: of the interval, at most; fewer if it cannot be halved any more.
        tolerance: a slope so small ends the bisection.

    Returns:
        The length, with the ends of the interval that was halved.

    >>> round(bisect_length(lambda x: x - 2, 0.0, 1.0, 100.0, 50).length, 12)
    2.0
    """
    left, right = _interval(slope, guess, reach, bound)
    if left == right:
        return Bisected(left, left, right, True, 0)
    low, high, middle = left, right, left + (right - left) / 2
    for done in range(halvings):
        here = slope(middle)
        if abs(here) <= tolerance or middle in (low, high):
            return Bisected(middle, left, right, False, done, abs(here) <= tolerance)
        low, high = (middle, high) if here < 0 else (low, middle)
        middle = low + (high - low) / 2
    return Bisected(middle, left, right, False, halvings)


def _interval(
    slope: Callable[[float], float], guess: float, reach: float, bound: float
) -> tuple[float, float]:
    """Ends with the slope negative on the left and positive on the right, or a bound twice."""
    left, right = max(guess - reach, -bound), min(guess + reach, bound)
    if slope(left) > 0:
        while slope(left) > 0:
            if left == -bound:
                return left, left
            left, right, reach = max(left - 2 * reach, -bound), left, 2 * reach
    elif slope(right) < 0:
        while slope(right) < 0:
            if right == bound:
                return right, right
            left, right, reach = right, min(right + 2 * reach, bound), 2 * reach
    return left, right
