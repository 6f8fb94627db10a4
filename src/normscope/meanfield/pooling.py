r"""Average pooling, max pooling and flattening.

Max pooling takes the values in a window as normal and equally correlated:
:math:`x_i = \sqrt u\, g + \sqrt{w}\, \xi_i` with one g for the window. The largest of k has the
mean and variance of the largest of k independent normal variables, scaled by w. For two windows,
in one sample or in two, let u be the covariance of values at different positions and m that at the
s positions that they share. Then

.. math:: \operatorname{Cov}(\max, \max) = u + w\, h(r), \qquad r = (m - u) / w, \qquad
    h'(r) = s\, P_r(\text{a shared position has the largest value of both windows})

with the exact probability of normal variables. The largest value is then treated as normal.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import ndtr

from normscope.meanfield.field import PAIR, SAME, Field, Operation, Setting, Signal, spread_sums
from normscope.meanfield.integrals import Array, both_below, expectation, normal_density
from normscope.meanfield.windows import Window, adaptive_matrix, average_matrix

_NODES = np.linspace(-6.5, 6.5, 53)  # the density is 1e-9 of its maximum there
_ANGLES = np.linspace(-np.pi / 2, np.pi / 2, 41)  # whose sines are the tabulated correlations


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

    needs_positions = True  # the mean of a map depends on the correlation of its positions

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
        pooled = field.mixed(positions=positions, mean=mean, kernel=kernel)
        return pooled.expanded() if setting.resolves(count) else pooled

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        if field.resolved:
            matrix = self._matrix(field)
            return signal.mapped(lambda kernel: matrix.T @ kernel @ matrix)
        share = output.count / field.count
        return signal.collapsed().mapped(lambda kernel: spread_sums(kernel, share))

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


class Overlap(NamedTuple):
    """Two windows of independent standard normal variables, some of which are pairs.

    Attributes:
        largest: probability that one given pair has the largest values of both windows, by the
            angle whose sine is the correlation of the pairs.
        covariance: of the largest values, likewise.
    """

    largest: CubicSpline
    covariance: CubicSpline


@functools.lru_cache(maxsize=256)
def overlap(first: int, second: int, shared: int) -> Overlap:
    r"""Return what two windows have in common, for every correlation of their shared positions.

    .. math:: P_r = E[\Phi_2(x, y; r)^{s-1} \Phi(x)^{k-s} \Phi(y)^{l-s}]

    with x and y normal, of correlation r.

    Args:
        first: size k of the first window.
        second: size l of the second.
        shared: number s of positions in both, at least 1.

    Returns:
        Interpolated in the angle.

    >>> round(float(overlap(4, 4, 4).covariance(np.pi / 2)), 4), round(largest_of(4)[1], 4)
    (0.4917, 0.4917)
    """
    weights = normal_density(_NODES) * (_NODES[1] - _NODES[0])
    x = _NODES[None, :, None]
    r = np.sin(_ANGLES)[:, None, None]
    y = r * x + np.cos(_ANGLES)[:, None, None] * _NODES
    both = both_below(*np.broadcast_arrays(x, y, r)) ** (shared - 1)
    values = both * ndtr(x) ** (first - shared) * ndtr(y) ** (second - shared)
    probability = CubicSpline(_ANGLES, np.einsum("axy,x,y->a", values, weights, weights))
    slope = CubicSpline(_ANGLES, shared * probability(_ANGLES) * np.cos(_ANGLES))
    total = slope.antiderivative()
    return Overlap(probability, CubicSpline(_ANGLES, total(_ANGLES) - total(0.0)))


class _Pairs(NamedTuple):
    """Pairs of windows: (settings, 2, windows, windows), sizes without the first two."""

    first: Array
    second: Array
    shared: Array
    apart: Array
    free: Array
    angle: Array

    def of(self, name: str) -> Array:
        """Return a function of the overlap for all pairs; 0 where windows share nothing."""
        found = np.zeros_like(self.angle)
        keys = np.stack([self.first, self.second, self.shared]).reshape(3, -1)
        flat, angles = found.reshape(*found.shape[:2], -1), self.angle.reshape(*found.shape[:2], -1)
        for key in np.unique(keys, axis=1).T:
            if key[2] > 0:
                at = (keys == key[:, None]).all(0)
                function = getattr(overlap(*(int(each) for each in key)), name)
                flat[..., at] = function(angles[..., at])
        return found


@dataclass(frozen=True)
class MaxPool(Operation):
    """The largest value in each window, of a map that is normal.

    Args:
        window: the geometry; padding is never the largest.
        after_batch_norm: whether its input comes from BatchNorm. The choice of the largest value
            makes gradients follow the values. With gradients through the statistics, BatchNorm's
            backward pass removes that part, so it is left out: in a VGG, the terms of the layers
            below are 0 instead of a measured 5 % of the sum, which would otherwise be 60 %.
    """

    window: Window
    after_batch_norm: bool = False

    needs_positions = True  # the largest value depends on the correlation of positions

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        positions = self.window.outputs(field.positions)
        means = field.mean @ self._shares(field).T if field.resolved else field.mean
        pairs = self._pairs(field)
        own = np.arange(pairs.free.shape[-1])
        sizes = [int(each) for each in np.diagonal(pairs.first)]
        shift = np.array([largest_of(size)[0] if size > 1 else 0.0 for size in sizes])
        mean = means + shift * np.sqrt(pairs.free[:, SAME, own, own])
        covariance = pairs.apart + pairs.free * pairs.of("covariance")
        kernel = covariance + (mean[:, :, None] * mean[:, None, :])[:, None]
        pooled = replace(field, positions=positions, mean=mean, kernel=kernel, gathered=None)
        return pooled.expanded() if setting.resolves(pooled.count) else pooled

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input: each goes to the one position that was the largest."""
        pairs = self._pairs(field)
        if self.after_batch_norm and setting.through_statistics:
            pairs.angle[:, PAIR] = 0.0
        joint = pairs.of("largest")
        others = np.maximum(pairs.first * pairs.second - pairs.shared, 1)
        apart = (1 - pairs.shared * joint) / others
        arriving = signal if field.resolved else signal.collapsed()
        kernel = self._scattered(arriving.kernel, joint, apart, field)
        bent = arriving.bent
        if bent is not None:
            bent = self._scattered(bent, joint[:, PAIR], apart[:, PAIR], field)
        return replace(signal, kernel=kernel, centred=False, bent=bent)

    def _scattered(self, kernel: Array, joint: Array, apart: Array, field: Field) -> Array:
        """Return sums over positions from those over windows.

        Args:
            kernel: sums of gradients over pairs of windows.
            joint: probability that a shared position has the largest value of both.
            apart: that of a pair of different positions.
            field: the map below.

        Returns:
            The sums over pairs of positions.
        """
        if not field.resolved:
            return spread_sums(kernel, self.window.size * joint[..., :1, :1])
        inside = (self._shares(field) > 0).astype(float)
        below = inside.T @ (kernel * apart) @ inside
        own = np.arange(field.count)
        below[..., own, own] += ((inside.T @ (kernel * (joint - apart))) * inside.T).sum(-1)
        return np.asarray(below)

    def _shares(self, field: Field) -> Array:
        return average_matrix(self.window, field.positions, count_padding=False)

    def _pairs(self, field: Field) -> _Pairs:
        """Return what is known of each pair of windows; of two that stand for all, if alike."""
        centred = field.kernel - (field.mean[:, :, None] * field.mean[:, None, :])[:, None]
        if field.resolved:
            inside = (self._shares(field) > 0).astype(float)
            sizes, shared = inside.sum(1), inside @ inside.T
            total = inside @ centred @ inside.T
            matched = (inside * np.diagonal(centred, axis1=-2, axis2=-1)[..., None, :]) @ inside.T
        else:
            sizes, own = np.full(2, float(self.window.size)), np.eye(2)
            shared = self.window.size * own
            matched = shared * centred[..., :1, :1]
            total = matched + (self.window.size**2 - shared) * centred[..., :1, 1:]
        first, second = np.broadcast_arrays(sizes[:, None], sizes[None, :])
        pairs = first * second - shared
        apart = np.where(pairs > 0, (total - matched) / np.maximum(pairs, 1), 0.0)
        matched = matched / np.maximum(shared, 1)
        own_free = np.diagonal((matched - apart)[:, SAME], axis1=-2, axis2=-1)
        root = np.sqrt(np.maximum(own_free, 0.0))
        free = (root[:, :, None] * root[:, None, :])[:, None].repeat(2, 1)
        ratio = np.where(free > 0, (matched - apart) / np.where(free > 0, free, 1.0), 0.0)
        angle = np.arcsin(np.clip(np.where(shared > 0, ratio, 0.0), -1.0, 1.0))
        return _Pairs(first, second, shared, apart, free, angle)
