"""Which unit and which position of a field each element of a tensor is.

Permutations, reshapes, slices and the like change neither values nor moments: they only move
elements. They are executed on a tensor of indices, so that every chain of them is known, and the
next layer checks whether it finds the channels where it needs them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.meanfield.arrangements import ChannelPart, Merge, PositionMeans, Select, is_whole
from normscope.meanfield.field import Operation
from normscope.meanfield.integrals import Array
from normscope.meanfield.pooling import AveragePool, Flatten

SAMPLES = 2  # in the batch that layouts describe


@dataclass(frozen=True, eq=False)
class Layout:
    """The units of a field in a tensor of two samples.

    Args:
        index: (sample * channels + channel) * positions + position, for each element.
        channels: of the field.
        positions: sizes of its map, () for a vector.
    """

    index: Tensor
    channels: int
    positions: tuple[int, ...]

    @classmethod
    def fresh(cls, shape: Sequence[int], channel: int = 1) -> Layout:
        """Return the layout of a tensor with channels in one dimension and positions in the others.

        Args:
            shape: of the tensor, samples first.
            channel: the dimension of the channels.

        Returns:
            The layout.
        """
        sizes = list(shape)
        channels = sizes.pop(channel)
        index = torch.arange(math.prod(shape)).reshape(sizes[0], channels, *sizes[1:])
        return cls(index.movedim(1, channel), channels, tuple(sizes[1:]))

    @property
    def count(self) -> int:
        """Number of positions."""
        return math.prod(self.positions)

    @property
    def sample(self) -> Tensor:
        """The sample of each element."""
        return self.index // (self.channels * self.count)

    @property
    def channel(self) -> Tensor:
        """The channel of each element."""
        return self.index // self.count % self.channels

    @property
    def position(self) -> Tensor:
        """The position of each element."""
        return self.index % self.count

    @property
    def is_flat(self) -> bool:
        """Whether each sample is one row of all its units, which have positions."""
        shape = (SAMPLES, self.channels * self.count)
        rows = tuple(self.index.shape) == shape and bool(self.positions)
        return rows and _distinct(self.index) == math.prod(shape)

    @property
    def is_complete(self) -> bool:
        """Whether the tensor has every unit once."""
        total = SAMPLES * self.channels * self.count
        return self.index.numel() == total == _distinct(self.index)

    def channel_dimensions(self) -> tuple[int, ...]:
        """Return the dimensions along which the channel changes."""
        channel = self.channel
        return tuple(
            d
            for d in range(channel.dim())
            if not torch.equal(channel, channel.narrow(d, 0, 1).expand_as(channel))
        )

    def values(self, tensor: Tensor) -> Array | None:
        """Return the values of a constant for each unit, (channels, positions).

        Args:
            tensor: broadcasts to the tensor of this layout.

        Returns:
            None if it does not, if it differs between samples, or if units are missing.
        """
        try:
            flat = tensor.detach().double().cpu().expand(self.index.shape).reshape(-1)
        except RuntimeError:  # of another shape
            return None
        both = torch.full((SAMPLES * self.channels * self.count,), torch.nan, dtype=flat.dtype)
        both[self.index.reshape(-1)] = flat
        grids = both.reshape(SAMPLES, self.channels, self.count)
        same = torch.equal(grids[0], grids[1])  # not for NaN
        return np.asarray(grids[0].numpy()) if same else None

    def arranged(self, dimensions: Sequence[int]) -> Arrangement | None:
        """Return how channels would have to be arranged to lie in some dimensions.

        Args:
            dimensions: those of the channels.

        Returns:
            None if samples do not lie apart, or have different units in the same places.
        """
        total = self.index.dim()
        inner = [d % total for d in dimensions]
        outer = [d for d in range(total) if d not in inner]
        width = math.prod(self.index.shape[d] for d in inner)
        rows = self.index.permute(*outer, *inner).reshape(-1, width)
        size = self.channels * self.count
        samples, units = rows // size, rows % size
        if not torch.equal(samples, samples[:, :1].expand_as(samples)):
            return None
        sample = samples[:, 0]
        parts = [units[sample == each] for each in range(SAMPLES)]
        if parts[0].shape != parts[1].shape or not torch.equal(*parts):
            return None
        outer_shape = tuple(self.index.shape[d] for d in outer)
        return Arrangement(self, parts[0], sample, outer_shape, (*outer, *inner), len(inner))


@dataclass(frozen=True, eq=False)
class Arrangement:
    """A tensor as rows of channels.

    Args:
        layout: of the tensor.
        units: of one sample, channel * positions + position, (rows, width).
        sample: of each row of both samples.
        shape: sizes of the dimensions that make the rows.
        order: the dimensions of the tensor, those of the rows first.
        inner: number of dimensions that make the channels.
    """

    layout: Layout
    units: Tensor
    sample: Tensor
    shape: tuple[int, ...]
    order: tuple[int, ...]
    inner: int

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions that make the channels."""
        dimensions = self.order[len(self.order) - self.inner :]
        return tuple(self.layout.index.shape[d] for d in dimensions)

    @property
    def positions(self) -> tuple[int, ...]:
        """Sizes of the map of rows of one sample."""
        by_sample = self.sample.reshape(self.shape)
        for d, size in enumerate(self.shape):
            expected = torch.arange(size).reshape(
                [-1 if k == d else 1 for k in range(len(self.shape))]
            )
            if size == SAMPLES and torch.equal(by_sample, expected.expand_as(by_sample)):
                return tuple(other for k, other in enumerate(self.shape) if k != d)
        return (len(self.units),)

    def operations(self, merge: bool = True) -> list[Operation] | None:
        """Return what brings the field into this arrangement; None if there is no way.

        Args:
            merge: whether positions may become channels, where the tensor has them among these.

        Returns:
            No operations if the field is there.
        """
        count = self.layout.count
        channel, position = self.units // count, self.units % count
        steady = torch.equal(channel, channel[:1].expand_as(channel))
        if steady and torch.equal(position, position[:, :1].expand_as(position)):
            return self._selection(channel[0], np.asarray(position[:, 0].numpy()))
        if not merge:
            return None
        if len(self.units) == 1 and _distinct(self.units) == self.layout.channels * count:
            return [Flatten()]
        return self._merged(channel[0], position) if steady else None

    def _selection(self, channel: Tensor, chosen: np.ndarray) -> list[Operation] | None:
        found: list[Operation] = []
        if _distinct(channel) != len(channel):
            return None  # a channel twice is not two independent ones
        if len(channel) < self.layout.channels:
            found.append(ChannelPart(frozenset(channel.tolist())))
        whole = is_whole(chosen, self.layout.positions)
        if not whole or self.positions != self.layout.positions:
            found.append(Select(chosen, self.positions, whole))
        return found

    def _merged(self, channel: Tensor, position: Tensor) -> list[Operation] | None:
        """Return the operation that makes channels of groups of positions."""
        columns = np.asarray(position.numpy())
        patterns, counts = np.unique(columns, axis=1, return_counts=True)
        pairs = _distinct(channel * self.layout.count + position[0])
        if pairs != len(channel) or not (counts == self.layout.channels).all():
            return None
        return [Merge(patterns.T, self.positions)]

    def layout_of(self, channels: int, sizes: Sequence[int] | None = None) -> Layout:
        """Return the layout of a tensor with other channels in the same rows.

        Args:
            channels: how many.
            sizes: of the dimensions that they lie in; None for one dimension.

        Returns:
            The layout, for a field in this arrangement.
        """
        rank = torch.zeros_like(self.sample)
        for each in range(SAMPLES):
            rank[self.sample == each] = torch.arange(len(self.units))
        count = len(self.units)
        index = (self.sample[:, None] * channels + torch.arange(channels)) * count + rank[:, None]
        index = index.reshape(*self.shape, *(sizes or (channels,)))
        back = [0] * len(self.order)
        for place, dimension in enumerate(self.order):
            back[dimension] = place
        return Layout(index.permute(back), channels, self.positions)


def aligned(first: Layout, second: Layout) -> tuple[list[Operation], Layout] | None:
    """Return what brings a second field to the units of a first one, element by element.

    Args:
        first: layout of a tensor.
        second: of another one, which broadcasts to the first.

    Returns:
        The operations on the second field, and the layout of the result; None if there is no way.
    """
    try:
        other = Layout(second.index.expand_as(first.index), second.channels, second.positions)
    except RuntimeError:  # of another shape
        return None
    if not torch.equal(first.sample, other.sample) or first.channels != second.channels:
        return None
    channels = _mapping(first.channel, other.channel, first.channels)
    chosen = _mapping(first.position, other.position, first.count)
    if channels is None or chosen is None or len(np.unique(channels)) != len(channels):
        return None
    whole = is_whole(chosen, second.positions)
    if whole and first.positions == second.positions:
        return [], first
    return [Select(chosen, first.positions, whole)], first


def _distinct(index: Tensor) -> int:
    """Return the number of different values."""
    return len(np.unique(index.numpy()))


def _mapping(first: Tensor, second: Tensor, count: int) -> np.ndarray | None:
    """Return the second number for every first one; None if there are several, or none."""
    found = torch.full((count,), -1)
    found[first.reshape(-1)] = second.reshape(-1)
    if bool((found < 0).any()) or not torch.equal(found[first], second):
        return None
    return np.asarray(found.numpy())


def averaged(layout: Layout, dimensions: Sequence[int]) -> tuple[Operation, Layout] | None:
    """Return the mean over some dimensions of a tensor, if they hold positions only.

    Args:
        layout: of the tensor.
        dimensions: to average over.

    Returns:
        The operation, and the layout of the tensor without these dimensions; None if the mean is
        over channels or samples.
    """
    total = layout.index.dim()
    inner = [d % total for d in dimensions]
    outer = [d for d in range(total) if d not in inner]
    sizes = [layout.index.shape[d] for d in outer]
    rows = layout.index.permute(*outer, *inner).reshape(math.prod(sizes), -1)
    units = rows // layout.count  # sample and channel
    if not torch.equal(units, units[:, :1].expand_as(units)):
        return None
    members = np.sort((rows % layout.count).numpy(), 1)
    groups, group = np.unique(members, axis=0, return_inverse=True)
    count = len(groups)
    index = (units[:, 0] * count + torch.from_numpy(group.reshape(-1))).reshape(sizes)
    operation: Operation = PositionMeans(groups, (count,))
    if count > 1:
        return operation, Layout(index, layout.channels, (count,))
    if is_whole(groups[0], layout.positions):
        operation = AveragePool(outputs=(1,) * len(layout.positions), drop_ones=True)
    else:
        operation = PositionMeans(groups, ())
    return operation, Layout(index, layout.channels, ())
