"""Activations, dropout and residual addition."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from normscope.errors import ShapeError
from normscope.meanfield.activations import Activation, Pair
from normscope.meanfield.field import SAME, Field, Signal
from normscope.meanfield.gaussian_integrals import Array
from normscope.meanfield.operations import Operation, Setting

__all__ = ["Addition", "Dropout", "Nonlinearity"]


@dataclass(frozen=True)
class Nonlinearity(Operation):
    """A function of each unit by itself.

    Args:
        function: the activation.
    """

    function: Activation

    def apply(self, fields: list[Field], setting: Setting) -> Field:
        """The order parameters of its output."""
        (field,) = fields
        std = np.sqrt(field.variance)
        kernel = self.function.product(*_pairs(field.mean, std), _correlation(field, std))
        mean = self.function.mean(field.mean, std)
        return replace(field, mean=mean, kernel=kernel, gathered=None, gaussian=False)

    def pull_back(
        self, signal: Signal, fields: list[Field], output: Field, setting: Setting
    ) -> list[Signal]:
        """The gradients at its input."""
        (field,) = fields
        std = np.sqrt(field.variance)
        slopes = self.function.slope_product(*_pairs(field.mean, std), _correlation(field, std))
        square, fourth = (self.function.slope_moment(field.mean, std, power) for power in (2, 4))
        units = field.channels * field.count
        kurtosis = (fourth / np.maximum(np.square(square), 1e-300)).mean(-1)
        step = np.zeros_like(signal.path)
        step[:, 2], step[:, 3] = kurtosis / units, (kurtosis - 1) / units
        tilt = _tilt(self.function, field.mean, std)
        return [Signal(signal.kernel * slopes, signal.path + step, centred=False, tilt=tilt)]


@dataclass(frozen=True)
class Dropout(Operation):
    """Units, or whole channels, set to zero at random and the others scaled up.

    Args:
        probability: of a unit to be dropped.
        whole_channels: whether all positions of a channel are dropped together.
    """

    probability: float
    whole_channels: bool = False

    def apply(self, fields: list[Field], setting: Setting) -> Field:
        """The order parameters of its output."""
        (field,) = fields
        return replace(field, kernel=self._dropped(field.kernel), gathered=None, gaussian=False)

    def pull_back(
        self, signal: Signal, fields: list[Field], output: Field, setting: Setting
    ) -> list[Signal]:
        """The gradients at its input."""
        return [replace(signal, kernel=self._dropped(signal.kernel), centred=False)]

    def _dropped(self, kernel: Array) -> Array:
        """Only one unit's product with itself for one input grows: others are kept on average."""
        raised = kernel[:, SAME] / (1 - self.probability)
        if not self.whole_channels:
            own = np.eye(kernel.shape[-1], dtype=bool)
            raised = np.where(own, raised, kernel[:, SAME])
        return np.stack([raised, kernel[:, 1 - SAME]], 1)


@dataclass(frozen=True)
class Addition(Operation):
    """The sum of branches whose units are independent, since weights stand between them."""

    def apply(self, fields: list[Field], setting: Setting) -> Field:
        """The order parameters of its output."""
        first, second = fields
        if (first.channels, first.positions) != (second.channels, second.positions):
            shapes = [(each.channels, *each.positions) for each in fields]
            raise ShapeError(f"branches to be added must have one shape, got {shapes}.")
        if first.resolved != second.resolved:
            first, second = first.expanded(), second.expanded()
        crossed = first.mean[:, :, None] * second.mean[:, None, :]
        kernel = first.kernel + second.kernel + (crossed + crossed.swapaxes(-1, -2))[:, None]
        gaussian = first.gaussian and second.gaussian
        mean = first.mean + second.mean
        return replace(first, mean=mean, kernel=kernel, gathered=None, gaussian=gaussian)

    def pull_back(
        self, signal: Signal, fields: list[Field], output: Field, setting: Setting
    ) -> list[Signal]:
        """The gradients at its inputs."""
        return [
            signal if each.resolved == output.resolved else signal.collapsed() for each in fields
        ]


def _tilt(function: Activation, mean: Array, std: Array) -> float:
    """(E[z phi'] / E[phi'])^2 with z standard normal, from how the mean moves with its argument."""
    step = 1e-4 * np.maximum(std, 1e-12)
    slope, lean = (
        function.mean(mean + shift, std + spread) - function.mean(mean - shift, std - spread)
        for shift, spread in ((step, 0.0), (0.0, step))
    )
    return float(np.mean(np.square(lean)) / max(float(np.mean(np.square(slope))), 1e-300))


def _pairs(mean: Array, std: Array) -> tuple[Pair, Pair]:
    """Means and deviations at two positions, which broadcast to a kernel."""
    return (
        (mean[:, None, :, None], mean[:, None, None, :]),
        (std[:, None, :, None], std[:, None, None, :]),
    )


def _correlation(field: Field, std: Array) -> Array:
    (first, second), (std_first, std_second) = _pairs(field.mean, std)
    size = np.maximum(std_first * std_second, 1e-300)
    return np.asarray(np.clip((field.kernel - first * second) / size, -1.0, 1.0))
