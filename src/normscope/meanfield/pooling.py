r"""Operations that combine positions: average pooling, max pooling and flattening.

Max pooling of normal maps: the covariance of the largest of several normal variables with another
one is the mean of their covariances, weighted by the probability of each to be the largest. So
max pooling acts on products of different positions like average pooling. Its mean and variance are
those of the largest of k equally correlated variables. The largest is then treated as normal.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from normscope.meanfield.field import SAME, Field, Operation, Setting, Signal
from normscope.meanfield.integrals import Array, expectation
from normscope.meanfield.windows import Window, adaptive_matrix, average_matrix


@dataclass(frozen=True)
class AveragePool(Operation):
    """Means over windows of positions.

    Args:
        window: the windows; None for those that give a map of the sizes ``outputs``.
        outputs: sizes of the map, all ones for global pooling.
        count_padding: whether the zeros of the padding count in the mean.
        drop_ones: whether pooled dimensions are removed (a mean over dimensions).
    """

    window: Window | None = None
    outputs: tuple[int, ...] = ()
    count_padding: bool = True
    drop_ones: bool = False

    @property
    def needs_positions(self) -> bool:
        """The mean of a map depends on the correlation of its positions."""
        return True

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        positions = self.outputs if self.window is None else self.window.outputs(field.positions)
        count = int(np.prod(positions))
        if field.resolved:
            matrix = self._matrix(field)
            kernel = matrix @ field.kernel @ matrix.T
            mean = field.mean @ matrix.T
        else:
            kernel, mean = self._alike(field, field.count / count), field.mean
        positions = () if self.drop_ones else positions
        pooled = replace(
            field, positions=positions, mean=mean, kernel=kernel, gathered=None, gaussian=False
        )
        return pooled.expanded() if setting.resolves(count) else pooled

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        if field.resolved:
            matrix = self._matrix(field)
            return signal.mapped(lambda kernel: matrix.T @ kernel @ matrix)
        share = output.count / field.count
        return signal.collapsed().mapped(lambda kernel: _shared_out(kernel, share))

    def _matrix(self, field: Field) -> Array:
        if self.window is None:
            return adaptive_matrix(field.positions, self.outputs)
        return average_matrix(self.window, field.positions, self.count_padding)

    @staticmethod
    def _alike(field: Field, window: float) -> Array:
        """Pool a map whose positions are all alike."""
        kernel = field.kernel.copy()
        one, two = field.kernel[..., 0, 0], field.kernel[..., 0, 1]
        pooled = one / window + (1 - 1 / window) * two
        kernel[..., 0, 0] = kernel[..., 1, 1] = pooled
        return kernel


def _shared_out(kernel: Array, share: float) -> Array:
    """Return sums over a map of like positions, each with its share of a window: D stays."""
    same = kernel[..., :1, :1] * share
    different = kernel.sum((-2, -1), keepdims=True) / 2 - same
    return np.where(np.eye(2, dtype=bool), same, different)


@dataclass(frozen=True)
class Flatten(Operation):
    """All positions of all channels as one vector; the next layer has separate weights for each."""

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        diagonal = np.diagonal(field.kernel, axis1=-2, axis2=-1).mean(-1)
        mean = field.mean.mean(-1, keepdims=True)
        kernel = diagonal[..., None, None]
        channels = field.channels * field.count
        return Field(channels, (), True, mean, kernel, gaussian=field.gaussian)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        held = field.kernel.shape[-1]
        return signal.mapped(lambda kernel: kernel * np.eye(held) / held)


@functools.lru_cache(maxsize=64)
def largest_of(count: int) -> tuple[float, float]:
    """Return the mean and variance of the largest of so many independent standard normal variables.

    >>> tuple(round(value, 4) for value in largest_of(2))  # 1 / sqrt(pi), 1 - 1 / pi
    (0.5642, 0.6817)
    """

    def density(z: Array) -> Array:
        """Return the density of the largest, over that of one variable."""
        return np.asarray(count * ndtr(z) ** (count - 1))

    zero, one = np.zeros(1), np.ones(1)
    mean = float(expectation(lambda z: z * density(z), zero, one)[0])
    return mean, float(expectation(lambda z: z * z * density(z), zero, one)[0]) - mean**2


@dataclass(frozen=True)
class MaxPool(Operation):
    """The largest value in each window, of a map that is normal.

    Args:
        window: the geometry; padding is never the largest.
    """

    window: Window

    @property
    def needs_positions(self) -> bool:
        """The largest value depends on the correlation of positions."""
        return True

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        positions = self.window.outputs(field.positions)
        if not field.resolved:
            return self._alike(field, positions, setting)
        matrix = average_matrix(self.window, field.positions, count_padding=False)
        sizes = (matrix > 0).sum(1)
        centred = field.kernel - (field.mean[:, :, None] * field.mean[:, None, :])[:, None]
        covariance = matrix @ centred @ matrix.T
        mean = field.mean @ matrix.T
        variance = field.variance @ matrix.T
        inside = np.diagonal(covariance[:, SAME], axis1=-2, axis2=-1)  # mean over pairs in a window
        return self._pooled(field, positions, (mean, variance, inside), covariance, sizes)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input: each goes to the one position that was the largest."""
        if field.resolved:
            matrix = average_matrix(self.window, field.positions, count_padding=False)
            pooled = signal.mapped(lambda kernel: matrix.T @ kernel @ matrix)
            own = np.diagonal(signal.kernel[:, SAME], axis1=-2, axis2=-1) @ matrix
            held = np.arange(field.count)
            pooled.kernel[:, SAME, held, held] = own
            return replace(pooled, centred=False)
        whole, share = signal.collapsed(), output.count / field.count
        pooled = whole.mapped(lambda kernel: _shared_out(kernel, share))
        pooled.kernel[:, SAME] = whole.kernel[:, SAME]
        return replace(pooled, centred=False)

    def _alike(self, field: Field, positions: tuple[int, ...], setting: Setting) -> Field:
        """Pool a map whose positions are all alike."""
        k = self.window.size
        centred = field.kernel - (field.mean[:, :, None] * field.mean[:, None, :])[:, None]
        share = np.where(np.eye(2, dtype=bool), 1 / k, 0.0)
        off = centred[..., :1, 1:]
        covariance = share * centred + (1 - share) * off
        inside = np.diagonal(covariance[:, SAME], axis1=-2, axis2=-1)
        moments = (field.mean, field.variance, inside)
        pooled = self._pooled(field, positions, moments, covariance, np.full(2, k))
        return pooled.expanded() if setting.resolves(pooled.count) else pooled

    def _pooled(
        self,
        field: Field,
        positions: tuple[int, ...],
        moments: tuple[Array, Array, Array],
        covariance: Array,
        sizes: Array,
    ) -> Field:
        """Return the field of the largest values, from means over windows and their covariance."""
        mean, variance, inside = moments
        k = np.maximum(sizes, 2)
        common = np.where(sizes > 1, (inside - variance / k) / (1 - 1 / k), variance)
        free = np.maximum(variance - common, 0.0)
        shift, spread = (np.array(v) for v in zip(*(largest_of(int(n)) for n in k), strict=True))
        mean = mean + shift * np.sqrt(free)
        covariance = covariance.copy()
        held = np.arange(covariance.shape[-1])
        covariance[:, SAME, held, held] = common + spread * free
        kernel = covariance + (mean[:, :, None] * mean[:, None, :])[:, None]
        return replace(field, positions=positions, mean=mean, kernel=kernel, gathered=None)
