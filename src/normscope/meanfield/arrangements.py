"""Operations that only rearrange: positions selected or merged, parts of the channels, constants.

A constant is a parameter or buffer that is added to or multiplied with all samples alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from normscope.meanfield.field import Field, Operation, Setting, Signal, representatives
from normscope.meanfield.integrals import Array

Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Select(Operation):
    """Some positions of a map, in any order.

    Args:
        chosen: flat index of the position below for each position; one may occur more than once.
        positions: sizes of the map.
        identical: whether all positions stay where they are, and only the sizes change.
    """

    chosen: Indices = field(repr=False)
    positions: tuple[int, ...]
    identical: bool = False

    @property
    def needs_positions(self) -> bool:
        """Whether it weights positions differently."""
        return not self.identical

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        if self.identical or not field.resolved:
            moved = replace(field, positions=self.positions, gathered=None)
            return moved.expanded() if setting.resolves(moved.count) else moved
        at = self.chosen
        kernel = field.kernel[..., at[:, None], at]
        mean = field.mean[:, at]
        return replace(field, positions=self.positions, mean=mean, kernel=kernel, gathered=None)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        if not field.resolved:
            return signal.collapsed() if output.resolved else signal
        if self.identical:
            return signal
        matrix = np.zeros((len(self.chosen), field.count))
        matrix[np.arange(len(self.chosen)), self.chosen] = 1.0
        return signal.mapped(lambda kernel: matrix.T @ kernel @ matrix)


@dataclass(frozen=True, eq=False)
class Merge(Operation):
    """Groups of positions become channels of one position, as in patches that are flattened.

    Args:
        patterns: flat index of the position below, (patterns, positions): one row for each place
            in a group.
        positions: sizes of the map of groups.
    """

    patterns: Indices = field(repr=False)
    positions: tuple[int, ...]

    needs_positions = True  # whether it weights positions differently

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        count = len(self.patterns)
        channels = field.channels * count
        if not field.resolved:
            merged = replace(field, channels=channels, positions=self.positions, gathered=None)
            return merged.expanded() if setting.resolves(merged.count) else merged
        kernel = sum(field.kernel[..., row[:, None], row] for row in self.patterns) / count
        mean = np.asarray(sum(field.mean[:, row] for row in self.patterns) / count)
        return Field(
            channels, self.positions, True, mean, np.asarray(kernel), gaussian=field.gaussian
        )

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        if not field.resolved:
            return signal.collapsed() if output.resolved else signal
        return signal.mapped(lambda kernel: self._spread(kernel, field.count))

    def _spread(self, kernel: Array, count: int) -> Array:
        below = np.zeros((*kernel.shape[:-2], count, count))
        for row in self.patterns:
            below[..., row[:, None], row] += kernel / len(self.patterns)
        return below


@dataclass(frozen=True)
class ChannelPart(Operation):
    """Some of the channels.

    Args:
        chosen: their indices.
    """

    chosen: frozenset[int] = field(repr=False)

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        return replace(field, channels=len(self.chosen), gathered=None)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        return signal


@dataclass(frozen=True, eq=False)
class PositionMeans(Operation):
    """Means over groups of positions.

    Args:
        groups: flat indices of the positions below, (positions, members of a group).
        positions: sizes of the map.
    """

    groups: Indices = field(repr=False)
    positions: tuple[int, ...]

    needs_positions = True  # the mean of a map depends on the correlation of its positions

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        field, matrix = field.expanded(), self._matrix(field.count)
        mean, kernel = field.mean @ matrix.T, matrix @ field.kernel @ matrix.T
        return field.mixed(positions=self.positions, mean=mean, kernel=kernel)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        matrix = self._matrix(field.count)
        below = signal.mapped(lambda kernel: matrix.T @ kernel @ matrix)
        return below if field.resolved else below.collapsed()

    def _matrix(self, count: int) -> Array:
        matrix = np.zeros((len(self.groups), count))
        for row, members in zip(matrix, self.groups, strict=True):
            np.add.at(row, members, 1 / len(members))
        return matrix


@dataclass(frozen=True, eq=False)
class Constant(Operation):
    """A tensor that all samples share, by its moments over channels.

    Args:
        mean: over channels at each position, (positions,); one number if positions do not matter.
        second: mean product over channels at two positions, (positions, positions).
    """

    mean: Array = field(repr=False)
    second: Array = field(repr=False)

    @property
    def needs_positions(self) -> bool:
        """Whether the tensor differs from position to position."""
        return len(self.mean) > 1

    def _held(self, field: Field) -> tuple[Array, Array]:
        """Return the moments at the positions that a field holds."""
        held, count = field.kernel.shape[-1], len(self.mean)
        if count in (1, held):
            return self.mean, self.second
        return np.full(2, self.mean.mean()), representatives(self.second)


@dataclass(frozen=True, eq=False)
class Shift(Constant):
    """The sum with a constant, such as an embedding of positions."""

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        mean, second = self._held(field)
        crossed = field.mean[:, :, None] * mean
        kernel = field.kernel + second + (crossed + crossed.swapaxes(-1, -2))[:, None]
        return replace(field, mean=field.mean + mean, kernel=kernel, gathered=None)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        return signal


@dataclass(frozen=True, eq=False)
class Scale(Constant):
    """The product with a constant, such as a layer scale."""

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        mean, second = self._held(field)
        kernel = field.kernel * second
        return replace(field, mean=field.mean * mean, kernel=kernel, gathered=None)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        _, second = self._held(field)
        return replace(signal, kernel=signal.kernel * second, centred=False, bent=None)


@dataclass(frozen=True, eq=False)
class ConstantTokens(Constant):
    """Constant positions before those of a map, such as a class token."""

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        field, own = field.expanded(), len(self.mean)
        settings, count = field.kernel.shape[0], own + field.count
        mean = np.concatenate([np.tile(self.mean, (settings, 1)), field.mean], 1)
        kernel = (mean[:, :, None] * mean[:, None, :])[:, None].repeat(2, 1)
        kernel[..., :own, :own] = self.second
        kernel[..., own:, own:] = field.kernel
        return replace(field, positions=(count,), mean=mean, kernel=kernel, gathered=None)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        own = len(self.mean)
        below = signal.mapped(lambda kernel: kernel[..., own:, own:])
        return below if field.resolved else below.collapsed()


def moments_over_channels(values: Array) -> tuple[Array, Array]:
    """Return mean and mean products over channels of a tensor (channels, positions).

    They are those of one position if all positions are the same.
    """
    if np.all(values == values[:, :1]):
        values = values[:, :1]
    return values.mean(0), np.asarray(values.T @ values / len(values))


def is_whole(chosen: Indices, positions: tuple[int, ...]) -> bool:
    """Return whether a selection has all positions in their order."""
    return len(chosen) == math.prod(positions) and bool(np.all(chosen == np.arange(len(chosen))))
