"""Activations and dropout.

An activation is given by its means over normal variables; :class:`Nonlinearity` applies one to the
order parameters of a layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import erf, ndtr

from normscope.meanfield.field import PAIR, SAME, Field, Operation, Setting, Signal
from normscope.meanfield.integrals import (
    Array,
    both_below,
    expectation,
    hermite_coefficients,
    normal_density,
    rectified_mean,
    rectified_product,
    safe_ratio,
    series,
)
from normscope.registry import unknown_name

Pair = tuple[Array, Array]


class Activation(ABC):
    """Means of a function and of its slope over normal variables."""

    name: str

    @abstractmethod
    def mean(self, mean: Array, std: Array) -> Array:
        """Return the mean of the function."""

    @abstractmethod
    def slope_moment(self, mean: Array, std: Array, power: int) -> Array:
        """Return the mean of a power (2 or 4) of the slope."""

    @abstractmethod
    def product(self, means: Pair, stds: Pair, correlation: Array) -> Array:
        """Return the mean of the product of the function at two variables."""

    @abstractmethod
    def slope_product(self, means: Pair, stds: Pair, correlation: Array) -> Array:
        """Return the mean of the product of the slope at two variables."""


@dataclass(frozen=True)
class Rectifier(Activation):
    """max(z, slope z), in closed form: ReLU (slope 0), LeakyReLU, and the identity (slope 1).

    Args:
        slope: on the negative side, from 0 to 1.
        name: for messages.
    """

    slope: float = 0.0
    name: str = "relu"

    def mean(self, mean: Array, std: Array) -> Array:
        """Return the mean of the function."""
        return np.asarray(self.slope * mean + (1 - self.slope) * rectified_mean(mean, std))

    def slope_moment(self, mean: Array, std: Array, power: int) -> Array:
        """Return the mean of a power of the slope."""
        positive = ndtr(safe_ratio(mean, std))
        return np.asarray(positive + (1 - positive) * self.slope**power)

    def product(self, means: Pair, stds: Pair, correlation: Array) -> Array:
        """Return the mean of the product of the function at two variables."""
        (m1, m2), (s1, s2), a = means, stds, self.slope
        covariance = correlation * s1 * s2
        total = (1 - a) ** 2 * rectified_product(means, stds, correlation) if a != 1 else 0.0
        if a == 0:
            return np.asarray(total)
        crossed = (
            m1 * rectified_mean(m2, s2)
            + m2 * rectified_mean(m1, s1)
            + covariance * (ndtr(safe_ratio(m2, s2)) + ndtr(safe_ratio(m1, s1)))
        )
        return np.asarray(total + a * (1 - a) * crossed + a * a * (m1 * m2 + covariance))

    def slope_product(self, means: Pair, stds: Pair, correlation: Array) -> Array:
        """Return the mean of the product of the slope at two variables."""
        a = self.slope
        if a == 1:
            return np.ones(np.broadcast_shapes(*(np.shape(v) for v in (*means, correlation))))
        first, second = (safe_ratio(m, s) for m, s in zip(means, stds, strict=True))
        both = both_below(first, second, correlation)
        return np.asarray((1 - a) ** 2 * both + a * (1 - a) * (ndtr(first) + ndtr(second)) + a * a)


@dataclass(frozen=True)
class Smooth(Activation):
    """A smooth function, by quadrature; use :class:`Rectifier` for one with a kink.

    Args:
        function: works on arrays, element by element.
        derivative: its slope; None for a difference of fourth order.
        name: for messages.
    """

    function: Callable[[Array], Array]
    derivative: Callable[[Array], Array] | None = None
    name: str = "function"

    def mean(self, mean: Array, std: Array) -> Array:
        """Return the mean of the function."""
        return expectation(self.function, mean, std)

    def slope_moment(self, mean: Array, std: Array, power: int) -> Array:
        """Return the mean of a power of the slope."""
        slope = self._difference if self.derivative is None else self.derivative
        return expectation(lambda z: np.power(slope(z), power), mean, std)

    def product(self, means: Pair, stds: Pair, correlation: Array) -> Array:
        """Return the mean of the product of the function at two variables."""
        first, second = self._coefficients(means, stds)
        return series(first, second, correlation)

    def slope_product(self, means: Pair, stds: Pair, correlation: Array) -> Array:
        """Return the mean of the product of the slope at two variables."""
        first, second = self._coefficients(means, stds)
        return np.asarray(series(first, second, correlation, slope=True) / (stds[0] * stds[1]))

    def _coefficients(self, means: Pair, stds: Pair) -> tuple[Array, ...]:
        return tuple(
            hermite_coefficients(self.function, m, s) for m, s in zip(means, stds, strict=True)
        )

    def _difference(self, z: Array, step: float = 1e-3) -> Array:
        near, far = (self.function(z + h) - self.function(z - h) for h in (step, 2 * step))
        return np.asarray((8 * near - far) / (12 * step))


@dataclass(frozen=True)
class ErrorFunction(Smooth):
    """erf, in closed form for means of zero and by quadrature otherwise."""

    def product(self, means: Pair, stds: Pair, correlation: Array) -> Array:
        """Return the mean of the product of the function at two variables."""
        if np.any(means[0]) or np.any(means[1]):
            return super().product(means, stds, correlation)
        size = (1 + 2 * np.square(stds[0])) * (1 + 2 * np.square(stds[1]))
        return np.asarray(
            2 / np.pi * np.arcsin(2 * correlation * stds[0] * stds[1] / np.sqrt(size))
        )

    def slope_product(self, means: Pair, stds: Pair, correlation: Array) -> Array:
        """Return the mean of the product of the slope at two variables."""
        if np.any(means[0]) or np.any(means[1]):
            return super().slope_product(means, stds, correlation)
        size = (1 + 2 * np.square(stds[0])) * (1 + 2 * np.square(stds[1]))
        covariance = correlation * stds[0] * stds[1]
        return np.asarray(4 / np.pi / np.sqrt(size - 4 * np.square(covariance)))


def _sigmoid(z: Array) -> Array:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * z))


def _sigmoid_slope(z: Array) -> Array:
    return np.asarray(_sigmoid(z) * _sigmoid(-z))


def _hardswish(z: Array) -> Array:
    return np.asarray(z * np.clip(z + 3, 0, 6) / 6)


def _hardswish_slope(z: Array) -> Array:
    return np.asarray(np.where(np.abs(z) < 3, (2 * z + 3) / 6, z > 0))


_MEMBERS: tuple[Activation, ...] = (
    Rectifier(),
    Rectifier(0.01, "leaky_relu"),
    Rectifier(1.0, "linear"),
    ErrorFunction(erf, lambda z: 2 / np.sqrt(np.pi) * np.exp(-(z**2)), "erf"),
    Smooth(np.tanh, lambda z: 1 / np.cosh(np.clip(z, -300, 300)) ** 2, "tanh"),
    Smooth(lambda z: z * ndtr(z), lambda z: ndtr(z) + z * normal_density(z), "gelu"),
    Smooth(lambda z: z * _sigmoid(z), lambda z: _sigmoid(z) + z * _sigmoid_slope(z), "silu"),
    Smooth(_sigmoid, _sigmoid_slope, "sigmoid"),
    Smooth(_hardswish, _hardswish_slope, "hardswish"),
)
ACTIVATIONS = {each.name: each for each in _MEMBERS}


def activation(choice: str | Activation | Callable[[Array], Array]) -> Activation:
    """Return an activation given by name, by a function, or as an Activation.

    Args:
        choice: relu, leaky_relu, linear, erf, tanh, gelu, silu, sigmoid, hardswish; an
            Activation; or a smooth function of arrays.

    Returns:
        The activation.

    Raises:
        UnknownNameError: if there is none of that name.

    >>> activation("relu")
    Rectifier(slope=0.0, name='relu')
    """
    if isinstance(choice, Activation):
        return choice
    if callable(choice):
        return Smooth(choice, name=getattr(choice, "__name__", "function"))
    if choice not in ACTIVATIONS:
        raise unknown_name("activation", choice, ACTIVATIONS)
    return ACTIVATIONS[choice]


@dataclass(frozen=True)
class Nonlinearity(Operation):
    """An activation, applied to each unit.

    Args:
        function: the activation.
    """

    function: Activation

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        std = np.sqrt(field.variance)
        kernel = self.function.product(*_pairs(field.mean, std), _correlation(field, std))
        mean = self.function.mean(field.mean, std)
        return field.mixed(mean=mean, kernel=kernel)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        std = np.sqrt(field.variance)
        slopes = self.function.slope_product(*_pairs(field.mean, std), _correlation(field, std))
        square, fourth = (self.function.slope_moment(field.mean, std, power) for power in (2, 4))
        units = field.channels * field.count
        kurtosis = np.maximum(fourth / np.maximum(np.square(square), 1e-300), 1.0).mean(-1)
        step = np.zeros_like(signal.path)
        step[:, 2], step[:, 3] = kurtosis / units, (kurtosis - 1) / units
        bend = _mean_curvature(self.function, field.mean, std)
        bent = signal.kernel[:, PAIR] * bend[:, :, None] * bend[:, None, :]
        return Signal(signal.kernel * slopes, signal.path + step, centred=False, bent=bent)


@dataclass(frozen=True)
class Dropout(Operation):
    """Units, or whole channels, set to zero at random and the others scaled up.

    Args:
        probability: of a unit to be dropped.
        whole_channels: whether all positions of a channel are dropped together.
    """

    probability: float
    whole_channels: bool = False

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        return field.mixed(kernel=self._dropped(field.kernel))

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        return replace(signal, kernel=self._dropped(signal.kernel), centred=False)

    def _dropped(self, kernel: Array) -> Array:
        """Increase the product of a unit with itself for one input; others keep their mean."""
        raised = kernel[:, SAME] / (1 - self.probability)
        if not self.whole_channels:
            own = np.eye(kernel.shape[-1], dtype=bool)
            raised = np.where(own, raised, kernel[:, SAME])
        return np.stack([raised, kernel[:, 1 - SAME]], 1)


def _mean_curvature(function: Activation, mean: Array, std: Array) -> Array:
    """Return E[phi''], the derivative of E[phi] by the standard deviation over that deviation."""
    size = np.maximum(std, 1e-12)
    step = 1e-4 * size
    return np.asarray(
        (function.mean(mean, std + step) - function.mean(mean, std - step)) / (2 * step * size)
    )


def _pairs(mean: Array, std: Array) -> tuple[Pair, Pair]:
    """Return means and standard deviations at two positions, which broadcast to a kernel."""
    return (
        (mean[:, None, :, None], mean[:, None, None, :]),
        (std[:, None, :, None], std[:, None, None, :]),
    )


def _correlation(field: Field, std: Array) -> Array:
    (first, second), (std_first, std_second) = _pairs(field.mean, std)
    size = np.maximum(std_first * std_second, 1e-300)
    return np.asarray(np.clip((field.kernel - first * second) / size, -1.0, 1.0))
