"""The grid of a surface: its values along each axis, and its refinement from coarse to fine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from numbers import Integral, Real
from typing import Any

import numpy as np
from scipy.ndimage import maximum_filter

from normscope.errors import ArgumentTypeError, InputError
from normscope.sweeps.work import coarse_to_fine

_FEWEST = 3  # points of an axis; a second difference needs three
_COARSE = 4  # intervals of the coarsest grid, at least

Measure = Callable[[list[tuple[int, ...]], int], np.ndarray]
"""Returns the losses at grid indices; the second argument is the level of refinement."""


def axis_values(low: float, high: float, count: int) -> np.ndarray:
    """Return equally spaced values; the one nearest to zero is exactly zero if rounding moved it.

    >>> axis_values(-1, 1, 5).tolist()
    [-1.0, -0.5, 0.0, 0.5, 1.0]
    """
    values = np.linspace(low, high, count)
    values[np.abs(values) < 1e-9 * (high - low)] = 0.0
    return values


def covering_ends(low: float, high: float, count: int) -> tuple[float, float]:
    """Return the ends of an axis that covers a range and has 0 on its grid.

    A quarter of the range is added on both sides, at least; the spacing is the least possible.

    >>> covering_ends(0.0, 1.0, 4)
    (-0.625, 1.25)

    Args:
        low: at most 0.
        high: at least 0.
        count: points of the axis, at least 3.
    """
    pad = 0.25 * (high - low)
    below = np.arange(1, count - 1)  # points below 0
    spacings = np.maximum((pad - low) / below, (high + pad) / (count - 1 - below))
    best = int(spacings.argmin())
    start = -float(below[best] * spacings[best])
    return start, float(start + (count - 1) * spacings[best])


def choose_grid(
    names: Sequence[str], extent: Any, points: Any, trajectory: Mapping[str, Any]
) -> list[np.ndarray]:
    """Return the values of each axis.

    Args:
        names: of the directions.
        extent: as `axis_extents` takes it; None: -1 to 1, or what covers the checkpoints.
        points: as `axis_counts` takes it.
        trajectory: the coordinates of checkpoints, if there are any.
    """
    counts = axis_counts(points, len(names))
    if extent is not None:
        ends = axis_extents(extent, len(names))
    else:
        along = trajectory["trajectory"][1].T if trajectory else [np.zeros(1)] * len(names)
        ends = [_covering(*each) for each in zip(names, along, counts, strict=True)]
    return [axis_values(*end, count) for end, count in zip(ends, counts, strict=True)]


def _covering(name: str, along: np.ndarray, count: int) -> tuple[float, float]:
    """Return the ends of an axis: -1 and 1, or what covers the checkpoints along it."""
    least = 0.0 if name == "checkpoints" else 1.0
    if name != "checkpoints" and np.abs(along).max() <= 1:
        return -1.0, 1.0
    return covering_ends(min(-least, along.min()), max(least, along.max()), count)


def axis_extents(extent: Any, dimensions: int) -> list[tuple[float, float]]:
    """Return the ends of each axis.

    >>> axis_extents(2, 1), axis_extents([(0, 1), (-1, 1)], 2)
    ([(-2.0, 2.0)], [(0.0, 1.0), (-1.0, 1.0)])

    Args:
        extent: a number for -extent to extent, (low, high), or one of them for each axis.
        dimensions: number of axes.

    Raises:
        InputError: if an end is not finite, or low is not below high.
        ArgumentTypeError: if it has another type.
    """
    if isinstance(extent, Real):
        ends = [(-float(extent), float(extent))] * dimensions
    elif not _is_row(extent) or len(extent) not in (2, dimensions):
        raise ArgumentTypeError(
            f"extent must be a number, (low, high) or one of these for each axis, got {extent!r}."
        )
    elif all(isinstance(each, Real) for each in extent) and len(extent) == 2:
        ends = [(float(extent[0]), float(extent[1]))] * dimensions
    else:
        ends = [axis_extents(each, 1)[0] for each in extent]
    for low, high in ends:
        if not (np.isfinite([low, high]).all() and low < high):
            raise InputError(f"an axis must go from a lower to a higher value, got {low}, {high}.")
    if len(ends) != dimensions:
        raise InputError(f"there are {dimensions} axes, but extents for {len(ends)}.")
    return ends


def axis_counts(points: Any, dimensions: int) -> list[int]:
    """Return the number of points of each axis.

    >>> axis_counts(25, 2), axis_counts((11, 21), 2)
    ([25, 25], [11, 21])

    Raises:
        InputError: if an axis has fewer than three.
        ArgumentTypeError: if it is not an integer or a list of one for each axis.
    """
    counts = list(points) if _is_row(points) else [points] * dimensions
    if len(counts) != dimensions or not all(map(_is_integer, counts)):
        raise ArgumentTypeError(
            f"points must be an integer, or {dimensions} of them, got {points!r}."
        )
    if min(counts) < _FEWEST:
        raise InputError(f"points must be at least {_FEWEST} on each axis, got {min(counts)}.")
    return [int(each) for each in counts]


def _is_row(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


@dataclass(frozen=True)
class Filled:
    """The values of a grid.

    Args:
        loss: at every point.
        measured: whether it was computed; the others are interpolated.
    """

    loss: np.ndarray
    measured: np.ndarray


def fill_grid(sizes: Sequence[int], measure: Measure, tolerance: float | None) -> Filled:
    """Return the losses of a grid, all measured, or refined from coarse to fine.

    Refinement halves the spacing level by level. The first two levels are measured whole. Later a
    point is measured if it is next to one whose value differed from the cubic interpolation of the
    level before by more than the tolerance, relative to the value, or was not finite; the others
    are interpolated. The tolerance is not a bound: beside kinks, such as those of ReLU, an error
    can be a few times larger, and a feature narrower than the second level can be missed.

    Args:
        sizes: points of each axis.
        measure: returns losses; called with the points in the order in which they are useful.
        tolerance: relative; None to measure every point.
    """
    loss, measured = np.full(sizes, np.nan), np.zeros(sizes, dtype=bool)
    if tolerance is None:
        order = coarse_to_fine(sizes)
        loss[tuple(np.array(order).T)] = measure(order, 0)
        return Filled(loss, ~measured)
    near = np.ones(sizes, dtype=bool)
    known: list[np.ndarray] = []
    for level, stride in enumerate(_strides(sizes)):
        axes = [_axis_indices(size, stride) for size in sizes]
        new = [at for at in product(*axes) if not known or _is_new(at, known)]
        if known and new:
            loss[tuple(np.array(new).T)] = _interpolate(loss, known, np.array(new))
        wanted = [at for at in new if near[at] or not np.isfinite(loss[at])]
        rough = np.zeros(sizes, dtype=bool)
        if wanted:
            places = tuple(np.array(wanted).T)
            guesses = loss[places]
            loss[places], measured[places] = measure(wanted, level), True
            with np.errstate(invalid="ignore"):  # inf - inf
                rough[places] = ~(
                    np.abs(loss[places] - guesses) <= tolerance * np.abs(loss[places])
                )
        rough[np.ix_(*axes)] |= ~np.isfinite(loss[np.ix_(*axes)])
        if level:
            near = maximum_filter(rough, size=2 * stride + 1, mode="constant")
        known = axes
    return Filled(loss, measured)


def _strides(sizes: Sequence[int]) -> list[int]:
    """Return the spacings of the levels, in points, from the coarsest to 1.

    >>> _strides([33, 33]), _strides([7])
    ([8, 4, 2, 1], [1])
    """
    stride = 1
    while (min(sizes) - 1) // (2 * stride) >= _COARSE:
        stride *= 2
    return [2**power for power in range(stride.bit_length() - 1, -1, -1)]


def _axis_indices(size: int, stride: int) -> np.ndarray:
    """Return every stride-th index, the last one too."""
    return np.unique([*range(0, size, stride), size - 1])


def _is_new(at: tuple[int, ...], known: Sequence[np.ndarray]) -> bool:
    return any(index not in axis for index, axis in zip(at, known, strict=True))


def _interpolate(loss: np.ndarray, known: Sequence[np.ndarray], new: np.ndarray) -> np.ndarray:
    """Return the cubic interpolation by the four nearest values of each axis of a coarser grid.

    NaN where one of them is not finite; a spline would depend on all values.
    """
    values = loss[np.ix_(*known)]
    stencils = [_stencil(axis, new[:, number]) for number, axis in enumerate(known)]
    places, weights = stencils[0]
    if len(stencils) == 1:
        found = values[places]
    else:
        columns, more = stencils[1]
        found = values[places[:, :, None], columns[:, None, :]]
        weights = weights[:, :, None] * more[:, None, :]
    with np.errstate(invalid="ignore"):
        terms = np.where(weights == 0, 0.0, weights * np.where(np.isfinite(found), found, np.nan))
    summed: np.ndarray = terms.reshape(len(new), -1).sum(axis=1)
    return summed


def _stencil(axis: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the four values of an axis around each point, by index, with their weights.

    >>> places, weights = _stencil(np.arange(0, 10, 2), np.array([4, 5]))
    >>> weights.tolist()
    [[0.0, 1.0, 0.0, 0.0], [-0.0625, 0.5625, 0.5625, -0.0625]]
    """
    first = np.clip(np.searchsorted(axis, at, side="right") - 2, 0, len(axis) - 4)
    places = first[:, None] + np.arange(4)
    nodes = axis[places].astype(float)
    weights = np.ones_like(nodes)
    for one, other in permutations(range(4), 2):
        weights[:, one] *= (at - nodes[:, other]) / (nodes[:, one] - nodes[:, other])
    return places, weights + 0.0
