"""Which positions of a map a filter or a pooling window covers."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import ShapeError
from normscope.meanfield.integrals import Array


@dataclass(frozen=True)
class Window:
    """The geometry of a convolution or pooling; one number per spatial dimension.

    Args:
        kernel: size of the window.
        stride: step from one window to the next.
        padding: zeros added before and after, per dimension.
        dilation: step inside a window.
        round_up: whether to include a last incomplete window (torch's ceil_mode).
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    round_up: bool = False

    @property
    def size(self) -> int:
        """Positions in one window."""
        return math.prod(self.kernel)

    @property
    def padded(self) -> bool:
        """Whether windows extend beyond the border."""
        return self.round_up or any(side for sides in self.padding for side in sides)

    def outputs(self, positions: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes of the map of windows.

        Args:
            positions: sizes of the map below.

        Returns:
            One size per dimension.

        Raises:
            ShapeError: if no window fits.
        """
        if len(positions) != len(self.kernel):
            raise ShapeError(
                f"a window of {len(self.kernel)} dimensions needs a map of as many, got a map of "
                f"sizes {positions}; give the input_shape that the model takes."
            )
        sizes = tuple(self._output(axis, size) for axis, size in enumerate(positions))
        if min(sizes) < 1:
            raise ShapeError(f"a window of {self.kernel} does not fit into a map of {positions}.")
        return sizes

    def _output(self, axis: int, size: int) -> int:
        before, after = self.padding[axis]
        room = size + before + after - self.dilation[axis] * (self.kernel[axis] - 1) - 1
        if not self.round_up:
            return room // self.stride[axis] + 1
        count = -(-room // self.stride[axis]) + 1
        # the last window must begin inside the map or its leading padding
        return count - ((count - 1) * self.stride[axis] >= size + before)


@functools.lru_cache(maxsize=64)
def seen_positions(window: Window, positions: tuple[int, ...]) -> NDArray[np.intp]:
    """Return the flat index of the map position under each element of each window.

    Args:
        window: the geometry.
        positions: sizes of the map below.

    Returns:
        (elements of the window, windows); padding has the number of positions as its index.

    >>> seen_positions(Window((2,), (1,), ((1, 0),), (1,)), (3,))
    array([[3, 0, 1],
           [0, 1, 2]])
    """
    plan, outside = _Plan(window, positions), math.prod(positions)
    index = np.arange(outside).reshape(positions)
    padded = np.pad(index, plan.margins, constant_values=outside)
    return np.stack([padded[place].reshape(-1) for place in plan.places])


def gathered(kernel: Array, window: Window, positions: tuple[int, ...]) -> Array:
    """Return the sum, over a window's elements, of the kernel at positions under two windows.

    Args:
        kernel: (..., positions, positions).
        window: the geometry; padding counts as zero.
        positions: sizes of the map below.

    Returns:
        (..., windows, windows).
    """
    plan = _Plan(window, positions)
    lead = kernel.shape[:-2]
    maps = kernel.reshape(*lead, *positions, *positions)
    padded = np.pad(maps, [(0, 0)] * len(lead) + [*plan.margins] * 2)
    total = np.zeros((*lead, *plan.outputs, *plan.outputs))
    for pair in plan.pairs:
        total += padded[pair]
    count = math.prod(plan.outputs)
    return total.reshape(*lead, count, count)


def scattered(kernel: Array, window: Window, positions: tuple[int, ...]) -> Array:
    """Return the transpose of :func:`gathered`: from pairs of windows to pairs of positions."""
    plan = _Plan(window, positions)
    lead = kernel.shape[:-2]
    maps = kernel.reshape(*lead, *plan.outputs, *plan.outputs)
    sizes = [n + sum(margin) for n, margin in zip(positions, plan.margins, strict=True)]
    total = np.zeros((*lead, *sizes, *sizes))
    for pair in plan.pairs:
        total[pair] += maps
    count = math.prod(positions)
    inner: Array = total[plan.inner]
    return inner.reshape(*lead, count, count)


class _Plan:
    """Margins of a padded map, the slice under each element of a window, and pairs of slices."""

    def __init__(self, window: Window, positions: tuple[int, ...]) -> None:
        self.outputs = window.outputs(positions)
        self.margins: list[tuple[int, int]] = []
        axes = []
        for axis, (size, count) in enumerate(zip(positions, self.outputs, strict=True)):
            step, gap = window.stride[axis], window.dilation[axis]
            reach = (count - 1) * step + 1
            before = window.padding[axis][0]
            last = reach + (window.kernel[axis] - 1) * gap
            self.margins.append((before, max(last - size - before, 0)))
            offsets = (place * gap for place in range(window.kernel[axis]))
            axes.append([slice(offset, offset + reach, step) for offset in offsets])
        self.places: list[Any] = list(itertools.product(*axes))
        self.pairs: list[Any] = [(..., *place, *place) for place in self.places]
        inner = [slice(m[0], m[0] + n) for n, m in zip(positions, self.margins, strict=True)]
        self.inner: Any = (..., *inner, *inner)


def shared_places(window: Window, positions: tuple[int, ...]) -> Array:
    """Return how many elements of a window are on the map, not padding, in two windows.

    >>> shared_places(Window((3,), (1,), ((1, 1),), (1,)), (3,))
    array([[2., 2., 1.],
           [2., 3., 2.],
           [1., 2., 2.]])
    """
    inside = (seen_positions(window, positions) < math.prod(positions)).astype(float)
    return np.asarray(inside.T @ inside)


def average_matrix(window: Window, positions: tuple[int, ...], count_padding: bool) -> Array:
    """Return the matrix of average pooling, (windows, positions)."""
    seen = seen_positions(window, positions)
    total = math.prod(positions)
    matrix = np.zeros((seen.shape[1], total + 1))
    for row in seen:
        matrix[np.arange(seen.shape[1]), row] += 1
    matrix = matrix[:, :total]
    valid = matrix.sum(1, keepdims=True)
    return np.asarray(matrix / (window.size if count_padding else np.maximum(valid, 1)))


def adaptive_matrix(positions: tuple[int, ...], outputs: tuple[int, ...]) -> Array:
    """Return the matrix of average pooling onto a map of given sizes, (windows, positions).

    >>> adaptive_matrix((4,), (2,))
    array([[0.5, 0.5, 0. , 0. ],
           [0. , 0. , 0.5, 0.5]])
    """
    matrix: Array = np.ones((1, 1))
    for size, count in zip(positions, outputs, strict=True):
        axis = np.zeros((count, size))
        for k in range(count):
            begin, end = k * size // count, -(-(k + 1) * size // count)
            axis[k, begin:end] = 1 / (end - begin)
        matrix = np.asarray(np.kron(matrix, axis), dtype=float)
    return matrix
