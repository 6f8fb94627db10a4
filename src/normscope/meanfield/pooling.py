"""Steps that join positions: average pooling and flattening."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from normscope.meanfield.field import Field, Signal
from normscope.meanfield.gaussian_integrals import Array
from normscope.meanfield.operations import Operation, Setting
from normscope.meanfield.windows import Window, adaptive_matrix, average_matrix

__all__ = ["AveragePool", "Flatten"]


@dataclass(frozen=True)
class AveragePool(Operation):
    """Means over windows of positions.

    Args:
        window: the windows; None for those that give a map of the sizes ``outputs``.
        outputs: sizes of the map, all ones for global pooling.
        count_padding: whether zeros of the padding count in the mean.
        drop_ones: whether positions vanish when they are pooled into one (a mean over dimensions).
    """

    window: Window | None = None
    outputs: tuple[int, ...] = ()
    count_padding: bool = True
    drop_ones: bool = False

    @property
    def needs_positions(self) -> bool:
        """The mean of a map depends on how its positions go together."""
        return True

    def apply(self, fields: list[Field], setting: Setting) -> Field:
        """The order parameters of its output."""
        (field,) = fields
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

    def pull_back(
        self, signal: Signal, fields: list[Field], output: Field, setting: Setting
    ) -> list[Signal]:
        """The gradients at its input."""
        (field,) = fields
        if field.resolved:
            matrix = self._matrix(field)
            return [replace(signal, kernel=matrix.T @ signal.kernel @ matrix)]
        # each position has its part of a window's mean: of S a part is left, of D all
        held = signal.collapsed().kernel
        same = held[..., :1, :1] * output.count / field.count
        different = held.sum((-2, -1), keepdims=True) / 2 - same
        return [replace(signal, kernel=np.where(np.eye(2, dtype=bool), same, different))]

    def _matrix(self, field: Field) -> Array:
        if self.window is None:
            return adaptive_matrix(field.positions, self.outputs)
        return average_matrix(self.window, field.positions, self.count_padding)

    @staticmethod
    def _alike(field: Field, window: float) -> Array:
        """Pooling of a map whose positions are all alike."""
        kernel = field.kernel.copy()
        one, two = field.kernel[..., 0, 0], field.kernel[..., 0, 1]
        pooled = one / window + (1 - 1 / window) * two
        kernel[..., 0, 0] = kernel[..., 1, 1] = pooled
        return kernel


@dataclass(frozen=True)
class Flatten(Operation):
    """All positions of all channels as one vector; the next layer has its own weights for each."""

    def apply(self, fields: list[Field], setting: Setting) -> Field:
        """The order parameters of its output."""
        (field,) = fields
        diagonal = np.diagonal(field.kernel, axis1=-2, axis2=-1).mean(-1)
        mean = field.mean.mean(-1, keepdims=True)
        kernel = diagonal[..., None, None]
        channels = field.channels * field.count
        return Field(channels, (), True, mean, kernel, gaussian=field.gaussian)

    def pull_back(
        self, signal: Signal, fields: list[Field], output: Field, setting: Setting
    ) -> list[Signal]:
        """The gradients at its input."""
        held = fields[0].kernel.shape[-1]
        return [replace(signal, kernel=signal.kernel * np.eye(held) / held)]
