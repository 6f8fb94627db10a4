"""The length of the weights by bisection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

__all__ = ["Bisected", "bisect_length"]

Slope = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Bisected:
    """A zero of the slope between two ends.

    Args:
        length: the middle of the last interval, or an end of the allowed range.
        left: where the bisection began.
        right: where it began, on the other side.
        at_bound: the slope still points outwards at the end of the allowed range, or has become
            too small for a number on the way there.
        halvings: of the interval.
        early: the slope was small enough before the interval was.
    """

    length: float
    left: float
    right: float
    at_bound: bool
    halvings: int
    early: bool = False

    def mirrored(self) -> Bisected:
        """The same for the slope seen from the other side."""
        return replace(self, length=-self.length, left=-self.right, right=-self.left)


def bisect_length(
    slope: Slope,
    guess: float,
    reach: float,
    bound: float,
    halvings: int,
    tolerance: float = 0.0,
) -> Bisected:
    """Where the slope passes from negative to positive, by bisection about a guess.

    The interval around the guess is doubled until it holds such a passage, then halved. A slope
    that falls to zero and never becomes positive is no passage: the length goes to the bound.

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
    left, right = max(guess - reach, -bound), min(guess + reach, bound)
    at_left, at_right = slope(left), slope(right)
    if at_left == 0 == at_right:  # flat here: only the slope at zero tells which way is down
        at_left = at_right = slope(0.0)
        if at_left == 0:
            return Bisected(min(max(guess, -bound), bound), left, right, False, 0, True)
        left, right = (0.0, max(right, reach)) if at_left < 0 else (min(left, -reach), 0.0)
        left, right = max(left, -bound), min(right, bound)
    if at_left > 0 or (at_left == 0 and at_right > 0):
        ends = (-right, -left)
        return _rightwards(lambda x: -slope(-x), ends, reach, bound, halvings, tolerance).mirrored()
    return _rightwards(slope, (left, right), reach, bound, halvings, tolerance)


def _rightwards(
    slope: Slope,
    ends: tuple[float, float],
    reach: float,
    bound: float,
    halvings: int,
    tolerance: float,
) -> Bisected:
    """Look from the left end, where the slope is not positive, to the right."""
    left, right = ends
    at_right = slope(right)
    while at_right <= 0 and right < bound:
        left = right if at_right < 0 else left
        right, reach = min(right + 2 * reach, bound), 2 * reach
        at_right = slope(right)
    if at_right < 0:
        return Bisected(bound, bound, bound, True, 0)
    found = _halved(slope, (left, right), at_right > 0, halvings, tolerance)
    return found or Bisected(bound, bound, bound, True, 0)


def _halved(
    slope: Slope, ends: tuple[float, float], rises: bool, halvings: int, tolerance: float
) -> Bisected | None:
    """Halve the interval; None where the slope, zero at its right end, is positive nowhere."""
    low, high = ends
    done, early = 0, False
    middle = low + (high - low) / 2
    while done < halvings:
        here = slope(middle)
        rises, early = rises or here > 0, abs(here) <= tolerance
        if middle in (low, high) or (rises and early):
            break
        low, high = (middle, high) if here < 0 else (low, middle)
        middle, done, early = low + (high - low) / 2, done + 1, False
    return Bisected(middle, *ends, False, done, early) if rises else None
