"""Order parameters that flow forward, gradients that flow backward, and the layers they pass.

Arrays have one leading axis for the settings of a sweep (values of gamma) and one or two trailing
axes for positions. A vector has one position. A map whose positions are all alike is represented by
two positions: the entry (0, 0) stands for one position and (0, 1) for two different ones. A map
that is resolved has an entry for every position. Kernels hold two planes: the same input at two
positions (:data:`SAME`), and two different inputs (:data:`PAIR`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normscope.meanfield.integrals import Array

SAME, PAIR = 0, 1
LARGEST_RESOLVED_MAP = 600  # positions; a kernel holds the square of it


@dataclass(frozen=True)
class Field:
    """Order parameters of one layer's output.

    Args:
        channels: units at one position.
        positions: spatial sizes, () for a vector.
        resolved: whether every position has its own entries.
        mean: over units and inputs, (settings, held), with held positions.
        kernel: second moments over units, (settings, 2, held, held).
        gathered: of a weighted layer, the mean product of its inputs, of the kernel's shape.
        gaussian: whether the units are normal, as after a wide weighted layer.
    """

    channels: int
    positions: tuple[int, ...]
    resolved: bool
    mean: Array
    kernel: Array
    gathered: Array | None = None
    gaussian: bool = True

    @property
    def count(self) -> int:
        """Number of positions."""
        return math.prod(self.positions)

    @property
    def second(self) -> Array:
        """Mean square at each position held, (settings, held)."""
        return np.diagonal(self.kernel[:, SAME], axis1=-2, axis2=-1)

    @property
    def variance(self) -> Array:
        """Variance over units and inputs at each position held, (settings, held)."""
        return np.asarray(np.maximum(self.second - np.square(self.mean), 0.0))

    @property
    def shares(self) -> Array:
        """Weights, row by row, of the held positions in a mean over all positions."""
        return position_shares(self.count, self.kernel.shape[-1])

    def row_means(self, kernel: Array) -> Array:
        """Return the mean of a kernel over its second position."""
        return np.asarray((kernel * self.shares).sum(-1))

    def mixed(self, **changes: Any) -> Field:
        """Return a field with these changes, whose units are neither normal nor sums of inputs."""
        return replace(self, gathered=None, gaussian=False, **changes)

    def expanded(self) -> Field:
        """Return the same field, resolved."""
        if self.resolved:
            return self
        if self.count == 1:
            gathered = None if self.gathered is None else self.gathered[..., :1, :1]
            mean, kernel = self.mean[:, :1], self.kernel[..., :1, :1]
            return replace(self, resolved=True, mean=mean, kernel=kernel, gathered=gathered)
        kernel = _spread_out(self.kernel, self.count)
        gathered = None if self.gathered is None else _spread_out(self.gathered, self.count)
        mean = np.repeat(self.mean[:, :1], self.count, axis=1)
        return replace(self, resolved=True, mean=mean, kernel=kernel, gathered=gathered)


@dataclass(frozen=True)
class Signal:
    """Gradients of one output that arrive at a field, as sums over positions.

    Args:
        kernel: sum over channels of the products of two gradients, (settings, 2, held, held); it
            adds up to D, its diagonal to S.
        path: sums over the layers that the gradients have passed, (settings, 4): 1 / channels over
            weighted layers except the last one, the number of all of these, and over activations
            the kurtosis of the slope, and that minus one, divided by the number of units.
        centred: whether their sum over the batch vanishes, unit by unit.
        bent: below an activation, the products of two samples' gradients above it, times
            E[phi''] at both positions, (settings, held, held): how gradients follow the value of
            the unit that they come through. None elsewhere.
    """

    kernel: Array
    path: Array
    centred: bool = False
    bent: Array | None = None

    @property
    def own(self) -> Array:
        """Squared norm of the gradient of one sample, (settings,)."""
        return np.asarray(np.trace(self.kernel[:, SAME], axis1=-2, axis2=-1))

    @property
    def diagonal(self) -> Array:
        """S: the product of two samples' gradients, summed over positions, (settings,)."""
        return np.asarray(np.trace(self.kernel[:, PAIR], axis1=-2, axis2=-1))

    @property
    def total(self) -> Array:
        """D: the product of two samples' gradients over all pairs of positions, (settings,)."""
        return np.asarray(self.kernel[:, PAIR].sum((-2, -1)))

    def collapsed(self) -> Signal:
        """Return the same sums, for positions that are all alike."""
        return self.mapped(_collapsed)

    def mapped(self, change: Callable[[Array], Array]) -> Signal:
        """Return the signal below a linear function of the positions, given its effect on sums."""
        bent = None if self.bent is None else change(self.bent)
        return replace(self, kernel=change(self.kernel), bent=bent)


def position_shares(count: int, held: int) -> Array:
    """Return the weights, row by row, of the held positions in a mean over all positions.

    >>> position_shares(4, 2)
    array([[0.25, 0.75],
           [0.75, 0.25]])
    """
    if held == count:
        return np.full((held, held), 1 / held)
    return np.array([[1 / count, 1 - 1 / count], [1 - 1 / count, 1 / count]])


def _collapsed(kernel: Array) -> Array:
    """Return the sums on and off the diagonal, at two representative positions."""
    same = np.trace(kernel, axis1=-2, axis2=-1) / 2
    different = kernel.sum((-2, -1)) / 2 - same
    rows = [np.stack([same, different], -1), np.stack([different, same], -1)]
    return np.stack(rows, -2)


def representatives(matrix: Array) -> Array:
    """Return the means of a matrix on and off the diagonal, at two representative positions."""
    count = len(matrix)
    own = float(np.trace(matrix)) / count
    other = (float(matrix.sum()) - own * count) / max(count * (count - 1), 1)
    return np.array([[own, other], [other, own]])


def spread_sums(kernel: Array, share: Array | float) -> Array:
    """Return sums over a map of like positions from those over windows.

    Args:
        kernel: sums over windows, at two representative ones.
        share: of the sums over equal windows that goes to equal positions; the total stays.

    Returns:
        The sums at two representative positions.
    """
    same = kernel[..., :1, :1] * share
    different = kernel.sum((-2, -1), keepdims=True) / 2 - same
    return np.where(np.eye(2, dtype=bool), same, different)


def _spread_out(kernel: Array, count: int) -> Array:
    """Expand a kernel of two representative positions to all positions."""
    own = np.eye(count, dtype=bool)
    return np.where(own, kernel[..., :1, :1], kernel[..., :1, 1:])


def combined(signals: list[Signal]) -> Signal:
    """Return the sum of gradients that reach one field on several paths and are uncorrelated."""
    if len(signals) == 1:
        return signals[0]
    sizes = np.stack([each.own for each in signals])
    total = sizes.sum(0)
    weights = np.where(total > 0, sizes / np.where(total > 0, total, 1.0), 1 / len(signals))
    path = sum(w[:, None] * each.path for w, each in zip(weights, signals, strict=True))
    kernel = sum(each.kernel for each in signals)
    found = [each.bent for each in signals if each.bent is not None]
    centred = all(each.centred for each in signals)
    bent = np.asarray(sum(found)) if found else None
    return Signal(np.asarray(kernel), np.asarray(path), centred, bent)


@dataclass(frozen=True)
class Setting:
    """Settings of a closure.

    Args:
        through_statistics: whether gradients flow through the batch statistics (closure train) or
            treat them as constants (frozen).
        batch_size: samples in a batch.
        resolve: whether to resolve small maps.
    """

    through_statistics: bool = True
    batch_size: float = float("inf")
    resolve: bool = False

    def resolves(self, count: int) -> bool:
        """Return whether a map of so many positions is resolved."""
        return count == 1 or (self.resolve and count <= LARGEST_RESOLVED_MAP)


class Operation(ABC):
    """One layer or function of a network, with one input."""

    @property
    def needs_positions(self) -> bool:
        """Whether it makes the positions of a map differ, or weights them differently."""
        return False

    @abstractmethod
    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output.

        Args:
            field: those of its input.
            setting: of the closure.

        Returns:
            The field.
        """

    @abstractmethod
    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input.

        Args:
            signal: the gradients at its output.
            field: the order parameters of its input.
            output: those of its output.
            setting: of the closure.

        Returns:
            The signal.
        """


class Combination(ABC):
    """A function of several branches."""

    @property
    def needs_positions(self) -> bool:
        """Whether it makes the positions of a map differ, or weights them differently."""
        return False

    @abstractmethod
    def apply(self, fields: Sequence[Field], setting: Setting) -> Field:
        """Return the order parameters of its output.

        Args:
            fields: those of its inputs.
            setting: of the closure.

        Returns:
            The field.
        """

    @abstractmethod
    def pull_back(
        self, signal: Signal, fields: Sequence[Field], which: int, output: Field, setting: Setting
    ) -> Signal:
        """Return the gradients at one of its inputs.

        Args:
            signal: the gradients at its output.
            fields: the order parameters of its inputs.
            which: the number of the input.
            output: the order parameters of its output.
            setting: of the closure.

        Returns:
            The signal.
        """


class Weighted(Operation):
    """An operation with random weights: linear or convolution.

    Attributes:
        fan_in: inputs of one unit.
        outputs: units, or output channels.
        weight_variance: mean square of a weight times fan_in.
        bias_variance: mean square of a bias.
        has_bias: whether it has biases.
        weight_mean: mean of its weights, which the theory takes to be zero.
    """

    fan_in: int
    outputs: int
    weight_variance: float
    bias_variance: float
    has_bias: bool
    weight_mean: float
