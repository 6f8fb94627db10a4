"""Numbers of a surface, each along one axis: curvature, roughness, width of the minimum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_ROUNDED = 4  # of the eps of a value: the rounding of f(h) - 2 f(0) + f(-h)
_CLEAR = 10  # least second difference that counts, in units of its rounding


def centre_curvature(
    loss: np.ndarray, measured: np.ndarray, axes: list[np.ndarray], axis: int, eps: float = 0.0
) -> float:
    r"""Return the second difference of a surface at its centre along one axis.

    .. math:: \frac{f(h) - 2 f(0) + f(-h)}{h^2}

    with h the spacing of the grid, or the least multiple of it at which both points were measured
    and the difference is ten times its rounding; the second derivative up to the terms of order h
    squared.

    Args:
        loss: on the grid.
        measured: whether a value was measured; interpolated ones do not count.
        axes: the values of each axis.
        axis: along which.
        eps: relative rounding of a loss.

    Returns:
        The curvature; NaN if the centre is not a point inside the grid, or all differences are
        rounding.

    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> centre_curvature(3 * x**2, np.ones(3, bool), [x], 0)
    6.0
    """
    zeros = [np.flatnonzero(each == 0) for each in axes]
    if any(len(found) == 0 for found in zeros):
        return float("nan")
    line = _line(np.where(measured, loss, np.nan), [int(found[0]) for found in zeros], axis)
    at, spacing = int(zeros[axis][0]), axes[axis][1] - axes[axis][0]
    for stride in range(1, min(at, len(line) - 1 - at) + 1):
        second = _second_differences(line[at - stride : at + stride + 1], stride, eps)[0]
        if np.isfinite(second):
            return float(second / (stride * spacing) ** 2)
    return float("nan")


def _second_differences(values: np.ndarray, stride: int, eps: float) -> np.ndarray:
    """Return second differences along the first axis; NaN where they may be rounding."""
    below, inner, above = values[: -2 * stride], values[stride:-stride], values[2 * stride :]
    with np.errstate(invalid="ignore", over="ignore"):
        second = above - 2 * inner + below
        rounding = _ROUNDED * eps * np.maximum(np.maximum(abs(above), abs(below)), abs(inner))
        found: np.ndarray = np.where(np.abs(second) >= _CLEAR * rounding, second, np.nan)
    return found


def _line(values: np.ndarray, at: Sequence[int], axis: int) -> np.ndarray:
    """Return the values along one axis through a point."""
    others = tuple(index for number, index in enumerate(at) if number != axis)
    found: np.ndarray = np.moveaxis(values, axis, -1)[others]
    return found


def roughness(
    loss: np.ndarray, measured: np.ndarray, axes: list[np.ndarray], axis: int, eps: float = 0.0
) -> float:
    r"""Return the largest absolute second difference along one axis, anywhere on the surface.

    .. math:: \max_{x, h} \frac{\lvert f(x + h) - 2 f(x) + f(x - h) \rvert}{h^2}

    Divided by the squared length of the direction it is a lower bound of beta, the Lipschitz
    constant of the gradient (beta-smoothness), which santurkar2018 calls the roughness. Spacings h
    are 1, 2, 4, ... times that of the grid. Differences below ten times their rounding are
    left out.

    Args:
        loss: on the grid.
        measured: whether a value was measured; interpolated ones do not count.
        axes: the values of each axis.
        axis: along which.
        eps: relative rounding of a loss.

    Returns:
        The largest of the finite ones; NaN if there are none.

    >>> x = np.linspace(-1, 1, 5)
    >>> roughness(np.array([0, 0, 1.0, 0, 0]), np.ones(5, bool), [x], 0)
    8.0
    """
    values = np.moveaxis(np.where(measured, loss, np.nan), axis, 0)
    spacing, largest = axes[axis][1] - axes[axis][0], float("nan")
    stride = 1
    while 2 * stride < len(values):
        second = _second_differences(values, stride, eps)
        found = np.abs(second[np.isfinite(second)]) / (stride * spacing) ** 2
        largest = float(np.fmax(largest, found.max())) if found.size else largest
        stride *= 2
    return largest


def minimum_width(loss: np.ndarray, axes: list[np.ndarray], axis: int) -> tuple[float, bool]:
    """Return the width of the region around the minimum in which the loss is at most twice it.

    Along one axis, through the lowest point of the grid; crossings are interpolated linearly.

    Args:
        loss: on the grid.
        axes: the values of each axis.
        axis: along which.

    Returns:
        The width, and whether the region reaches an end of the axis, so that it is a lower bound;
        NaN if the minimum is not positive or not known.

    >>> x = np.linspace(-2, 2, 5)
    >>> minimum_width(1 + np.abs(x), [x], 0)
    (2.0, False)
    """
    if not np.isfinite(loss).any():
        return float("nan"), False
    at = np.unravel_index(int(np.nanargmin(loss)), loss.shape)
    lowest = float(loss[at])
    if not lowest > 0:
        return float("nan"), False
    line = _line(loss, [int(index) for index in at], axis)
    start, values = int(at[axis]), axes[axis]
    right, open_right = _crossing(line[start:], values[start:], 2 * lowest)
    left, open_left = _crossing(line[start::-1], values[start::-1], 2 * lowest)
    return abs(right - left), open_right or open_left


def _crossing(line: np.ndarray, values: np.ndarray, level: float) -> tuple[float, bool]:
    """Return where a line first rises above a level, and whether it ends before that."""
    above = np.flatnonzero(~(line <= level))
    if not above.size:
        return float(values[-1]), True
    first = int(above[0])
    if not np.isfinite(line[first]):
        return float(values[first - 1]), False
    share = (level - line[first - 1]) / (line[first] - line[first - 1])
    return float(values[first - 1] + share * (values[first] - values[first - 1])), False
