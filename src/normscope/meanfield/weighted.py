r"""Linear layers and convolutions.

With N inputs of a unit, weights of variance :math:`\sigma_w^2/N` and biases of variance
:math:`\sigma_b^2`, the second moments of the output are :math:`\sigma_b^2 + \sigma_w^2` times the
mean second moments of the input. Sums of gradients over positions are multiplied by
:math:`\sigma_w^2` in the backward pass.

Reference: wei2018, Eqs. (20)-(25) and (34)-(43).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from normscope.errors import ShapeError
from normscope.meanfield.field import Field, Setting, Signal, Weighted
from normscope.meanfield.integrals import Array
from normscope.meanfield.windows import Window, gathered, scattered, shared_places


@dataclass(frozen=True)
class Linear(Weighted):
    """A fully connected layer on a vector, or on the channels of each position.

    Args:
        inputs: size of the input vector.
        outputs: units.
        weight_variance: variance of a weight times the number of inputs.
        bias_variance: variance of a bias.
        has_bias: whether it has biases.
        weight_mean: mean of its weights, which the theory takes to be zero.
        each_position: whether it takes maps, position by position.
    """

    inputs: int
    outputs: int
    weight_variance: float = 2.0
    bias_variance: float = 0.0
    has_bias: bool = True
    weight_mean: float = 0.0
    each_position: bool = False

    @property
    def fan_in(self) -> int:  # type: ignore[override]  # computed, where the base declares it
        """Inputs of one unit."""
        return self.inputs

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        if (field.positions and not self.each_position) or field.channels != self.inputs:
            shape = (field.channels, *field.positions)
            raise ShapeError(
                f"a linear layer of {self.inputs} inputs got something of shape {shape}; give the "
                "input_shape that the model takes, or flatten before the layer."
            )
        kernel = self.bias_variance + self.weight_variance * field.kernel
        mean = np.zeros_like(field.mean)
        sizes = (field.positions, field.resolved)
        return Field(self.outputs, *sizes, mean, kernel, gathered=field.kernel)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        return _through(signal, self.weight_variance * signal.kernel, output)


@dataclass(frozen=True)
class Convolution(Weighted):
    """A convolution over one, two or three dimensions.

    Args:
        inputs: input channels.
        outputs: output channels.
        window: geometry of its filter.
        groups: into which the channels are split.
        weight_variance: variance of a weight times the inputs of a unit.
        bias_variance: variance of a bias.
        has_bias: whether it has biases.
        weight_mean: mean of its weights, which the theory takes to be zero.
    """

    inputs: int
    outputs: int
    window: Window
    groups: int = 1
    weight_variance: float = 2.0
    bias_variance: float = 0.0
    has_bias: bool = True
    weight_mean: float = 0.0

    @property
    def fan_in(self) -> int:  # type: ignore[override]  # computed, where the base declares it
        """Inputs of one unit: its channels times the positions of the filter."""
        return self.inputs // self.groups * self.window.size

    @property
    def needs_positions(self) -> bool:
        """Whether padding makes positions differ."""
        return self.window.padded

    def apply(self, field: Field, setting: Setting) -> Field:
        """Return the order parameters of its output."""
        if field.channels != self.inputs:
            raise ShapeError(
                f"a convolution of {self.inputs} channels got {field.channels}; give the "
                "input_shape that the model takes."
            )
        positions = self.window.outputs(field.positions)
        taken = self._taken(field, setting.resolves(math.prod(positions)))
        kernel = self.bias_variance + self.weight_variance * taken
        mean = np.zeros(kernel.shape[:1] + kernel.shape[-1:])
        resolved = field.resolved or setting.resolves(math.prod(positions))
        return Field(self.outputs, positions, resolved, mean, kernel, taken)

    def pull_back(self, signal: Signal, field: Field, output: Field, setting: Setting) -> Signal:
        """Return the gradients at its input."""
        if field.resolved:
            scale = self.weight_variance / self.window.size
            kernel = scale * scattered(signal.kernel, self.window, field.positions)
            return _through(signal, kernel, output)
        if output.resolved:
            kept = shared_places(self.window, field.positions) / self.window.size
            signal = replace(signal, kernel=signal.kernel * kept)
        return _through(signal, self.weight_variance * signal.collapsed().kernel, output)

    def _taken(self, field: Field, resolve: bool) -> Array:
        """Return the mean of the input kernel over the filter's positions; padding counts as 0."""
        if field.resolved:
            return gathered(field.kernel, self.window, field.positions) / self.window.size
        if not resolve:
            return field.kernel
        kept = shared_places(self.window, field.positions) / self.window.size
        own = np.eye(len(kept), dtype=bool)  # a filter position has one input position
        return np.asarray(
            kept * np.where(own, field.kernel[..., :1, :1], field.kernel[..., :1, 1:])
        )


def _through(signal: Signal, kernel: Array, output: Field) -> Signal:
    """Return the signal below a weighted layer; its path counts the layer."""
    step = np.zeros_like(signal.path)
    step[:, 0] = np.where(signal.path[:, 1] > 0, 1 / output.channels, 0.0)  # not of the outputs
    step[:, 1] = 1.0
    return Signal(kernel, signal.path + step, centred=False)
