r"""Normalization over the batch and over each sample.

BatchNorm divides by the standard deviation over data and positions,
:math:`s^2 = q - q_{xy}` (both averaged over positions), not by the root of q. With gradients
through the statistics, the gradients at its input sum to zero over batch and positions in each
channel. The variance of a single channel scatters about :math:`s^2` in small batches, and on maps
of few positions in batches of any size, so that squared gradients grow by
:math:`s^2 E[1/\hat s^2] > 1`.

Reference: wei2018, Section 3.1; ioffe2015, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from normscope.errors import ShapeError
from normscope.meanfield.field import PAIR, SAME, Field, Operation, Setting, Signal
from normscope.meanfield.integrals import Array

_LOG_GRID = np.arange(-30.0, 80.0, 0.25)  # log t; the rule is exact to 1e-9 from 3 values on


@dataclass(frozen=True)
class Norm(Operation):
    """A normalization with a scale and a shift for each channel.

    Args:
        gamma: root mean square of the scale; a number, or one for each setting of a sweep.
        beta: mean of the shift.
        beta_variance: variance of the shift over channels.
        eps: added to the variance.
    """

    gamma: float | Array = 1.0
    beta: float = 0.0
    beta_variance: float = 0.0
    eps: float = 0.0

    def _scale(self, variance: Array) -> Array:
        """Return the factor of the centred values, (settings,)."""
        return np.asarray(np.asarray(self.gamma) / np.sqrt(variance + self.eps))

    def _affine(self, field: Field, mean: Array, kernel: Array, variance: Array) -> Field:
        """Scale and shift centred moments."""
        scale = self._scale(np.maximum(variance, 1e-300))
        mean = mean * scale[:, None]
        kernel = kernel * np.square(scale)[:, None, None, None]
        return self._shifted(field, mean, kernel)

    def _shifted(self, field: Field, mean: Array, kernel: Array) -> Field:
        """Shift moments."""
        if self.beta or self.beta_variance:
            shifts = self.beta * (mean[:, None, :, None] + mean[:, None, None, :])
            kernel = kernel + shifts + self.beta**2 + self.beta_variance
            mean = mean + self.beta
        return replace(field, mean=mean, kernel=kernel, gathered=None)


@dataclass(frozen=True)
class BatchNorm(Norm):
    """Normalization by the mean and variance over the batch and all positions."""

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        return self._affine(field, *_centred(field), batch_variance(field))

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        scale = np.square(self._scale(batch_variance(field)))
        few = scale * self._growth(field, setting.batch_size)
        received = signal.kernel[:, SAME]
        same = np.zeros_like(received)  # no gradient stays none, also at an infinite growth
        np.multiply(received, few[:, None, None], out=same, where=received != 0)
        if not setting.through_statistics:
            many = scale * self._growth(field, float("inf"))  # mean gradients are of much data
            pair = signal.kernel[:, PAIR] * many[:, None, None]
            return replace(signal, kernel=np.stack([same, pair], 1), centred=False, bent=None)
        # Where the mean square is infinite it stays so, whatever share is removed.
        kept = _kept_share(setting.batch_size * field.count)
        same = same * np.where(np.isfinite(few), kept, 1.0)[:, None, None]
        # The part that remains is small where the variance is large: no growth.
        pair = _without_means(signal.kernel[:, PAIR] * scale[:, None, None], field)
        if signal.bent is not None:
            gamma = np.square(np.asarray(self.gamma)) * scale
            pair = pair + self._along_values(signal.bent * gamma[:, None, None], field)
        return replace(signal, kernel=np.stack([same, pair], 1), centred=True, bent=None)

    def _growth(self, field: Field, batch_size: float) -> Array:
        """Return the growth of squared gradients by the scatter of variances, (settings,)."""
        variance = batch_variance(field)
        damping = np.square(variance / np.maximum(variance + self.eps, 1e-300))
        excess = variance_growth(field, batch_size) - 1
        return 1 + np.where(damping > 0, damping, 1.0) * excess

    def _along_values(self, bent: Array, field: Field) -> Array:
        r"""Return what the part of the gradients along the normalized values changes in the sums.

        .. math:: d_a = g_a - \langle g\rangle - m_a \langle g \hat x\rangle

        with the mean :math:`m_a` over data of a unit's normalized value at a position, and means
        over data and positions in brackets. The last one is taken for its mean over units. What
        results are the products of actual vectors: they have no negative eigenvalue.
        """
        mean, kernel = _centred(field)
        kernel = kernel - (mean[:, :, None] * mean[:, None, :])[:, None]
        kernel = kernel / (batch_variance(field) + self.eps)[:, None, None, None]
        own, means = np.diagonal(kernel[:, SAME], axis1=-2, axis2=-1), kernel[:, PAIR]
        rows = (bent * own[:, None, :]).sum(-1)
        crossed = field.shares * rows[:, :, None] * means
        crossed = crossed - field.shares * crossed.sum(-2)[:, None, :]
        squared = field.shares * (rows * own).mean(-1)[:, None, None] * means
        return np.asarray(squared - crossed - crossed.swapaxes(-1, -2))


@dataclass(frozen=True)
class SampleNorm(Norm):
    """Layer or group normalization of wide layers: the variance of a sample equals its mean.

    Args:
        gamma: root mean square of the scale; a number, or one for each setting of a sweep.
        beta: mean of the shift.
        beta_variance: variance of the shift over channels.
        eps: added to the variance.
        shape: of what it normalizes over, which must be the whole sample; None for no check.
    """

    shape: tuple[int, ...] | None = None

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        if self.shape is not None and self.shape != (field.channels, *field.positions):
            raise ShapeError(
                f"layer normalization over {self.shape} of something of shape "
                f"{(field.channels, *field.positions)} has no closure, only over whole samples."
            )
        centre = field.mean.mean(-1)
        shifts = field.mean[:, :, None] + field.mean[:, None, :] - centre[:, None, None]
        kernel = field.kernel - (centre[:, None, None] * shifts)[:, None]
        mean = field.mean - centre[:, None]
        return self._affine(field, mean, kernel, _sample_variance(field))

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input; the two directions that it removes are negligible."""
        scale = np.square(self._scale(_sample_variance(field)))
        kernel = signal.kernel * scale[:, None, None, None]
        return replace(signal, kernel=kernel, centred=False, bent=None)


@dataclass(frozen=True)
class TokenNorm(Norm):
    """Normalization over the channels of each position: layer or root mean square.

    The variance over the channels of a wide layer equals its mean over weights.

    Args:
        gamma: root mean square of the scale; a number, or one for each setting of a sweep.
        beta: mean of the shift.
        beta_variance: variance of the shift over channels.
        eps: added to the variance.
        centred: whether the mean over channels is subtracted (layer normalization).
        dimension: of the tensor, which has the channels.
    """

    centred: bool = True
    dimension: int = -1

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        scale, mean, kernel = self._scales(field), field.mean, field.kernel
        if self.centred:
            kernel = kernel - (mean[:, :, None] * mean[:, None, :])[:, None]
            mean = np.zeros_like(mean)
        mean = mean * scale
        kernel = kernel * (scale[:, :, None] * scale[:, None, :])[:, None]
        return self._shifted(field, mean, kernel)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input; the directions that it removes are negligible."""
        scale = self._scales(field)
        kernel = signal.kernel * (scale[:, :, None] * scale[:, None, :])[:, None]
        return replace(signal, kernel=kernel, centred=False, bent=None)

    def _scales(self, field: Field) -> Array:
        """Return the factor at each position, (settings, held)."""
        second = field.second
        variance = second - np.square(field.mean) if self.centred else second
        gamma = np.reshape(np.asarray(self.gamma, dtype=float), (-1, 1))
        return np.asarray(gamma / np.sqrt(np.maximum(variance, 1e-300) + self.eps))


def batch_variance(field: Field) -> Array:
    """Return the variance over data and positions that BatchNorm divides by, (settings,)."""
    return np.asarray(field.second.mean(-1) - field.row_means(field.kernel[:, PAIR]).mean(-1))


def variance_growth(field: Field, batch_size: float) -> Array:
    r"""Return :math:`E[s^2] E[1/s^2]` of the variance of one unit over a batch and its positions.

    The values of a unit are normal over random weights. Their covariance is S at two positions of
    one sample and Q at those of two samples. So :math:`s^2` is a quadratic form with two parts,
    from the differences S - Q of samples and from the centred means over samples,
    (S - Q) / m + Q. Each is taken as a multiple of a chi-squared variable with the same mean and
    variance. That is exact for vectors, where it gives (m - 1) / (m - 3).

    Reference: yang2019, for the growth with batches of vectors.

    Args:
        field: order parameters of the units.
        batch_size: samples, m.

    Returns:
        (settings,); infinite for two degrees of freedom or fewer.
    """
    pair = field.kernel[:, PAIR]
    differences = field.kernel[:, SAME] - pair
    means = differences / batch_size + pair
    rows = field.row_means(means)
    means = means - rows[:, :, None] - rows[:, None, :] + rows.mean(-1)[:, None, None]
    share = 1 - 1 / batch_size
    own, own_squares = _mean_and_squares(differences, field)
    other, other_squares = _mean_and_squares(means, field)
    sizes = np.stack([share * own, other])
    squares = np.stack([share / batch_size * own_squares, other_squares])
    return _inverse_mean(sizes, squares)


def _mean_and_squares(matrix: Array, field: Field) -> tuple[Array, Array]:
    """Return the mean diagonal entry and the mean squared entry over all positions."""
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1).mean(-1)
    return np.maximum(diagonal, 0.0), field.row_means(np.square(matrix)).mean(-1)


def _inverse_mean(sizes: Array, squares: Array) -> Array:
    r"""Return :math:`E[s] E[1/s]` of the sum of independent multiples of chi-squared variables.

    .. math:: E[1/s] = \int_0^\infty \prod_i (1 + 2 t \mu_i / \nu_i)^{-\nu_i / 2} dt

    with the trapezoidal rule over log t.

    Args:
        sizes: the means, (parts, settings).
        squares: mean squared over the degrees of freedom, of the same shape.
    """
    total = sizes.sum(0)
    shares = sizes / np.where(total > 0, total, 1.0)
    relative = squares / np.where(total > 0, np.square(total), 1.0)
    half = np.square(shares) / np.maximum(2 * relative, 1e-15)  # of the degrees of freedom
    at = np.exp(_LOG_GRID)[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(half > 0, shares / half, 0.0)
        exponent = (half * np.log1p(at * rate)).sum(1)
    found = (at[:, 0] * np.exp(-exponent)).sum(0) * (_LOG_GRID[1] - _LOG_GRID[0])
    found = np.where(half.sum(0) > 1 + 1e-9, found, np.inf)  # rounding: two degrees are exactly 1
    return np.asarray(np.where(total > 0, found, 1.0))


def _kept_share(values: float) -> float:
    """Return the share of squared gradients that remains after two directions are removed."""
    return 1.0 if np.isinf(values) else float((values - 2) / (values - 1)) if values > 2 else 0.0


def _sample_variance(field: Field) -> Array:
    return np.asarray(field.second.mean(-1) - np.square(field.mean.mean(-1)))


def _centred(field: Field) -> tuple[Array, Array]:
    """Return mean and second moments after the mean over data and positions is subtracted."""
    rows = field.row_means(field.kernel[:, PAIR])
    taken = rows[:, :, None] + rows[:, None, :] - rows.mean(-1)[:, None, None]
    mean = field.mean - field.mean.mean(-1, keepdims=True)
    return mean, field.kernel - taken[:, None]


def _without_means(kernel: Array, field: Field) -> Array:
    """Return products of gradients after their mean over data and positions is subtracted."""
    rows = kernel.sum(-1)
    taken = rows[:, :, None] + rows[:, None, :] - rows.mean(-1)[:, None, None]
    return np.asarray(kernel - field.shares * taken)
