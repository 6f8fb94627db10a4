"""Operations that combine positions linearly: average pooling and flattening."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from normscope.meanfield.field import Field, Operation, Setting, Signal
from normscope.meanfield.integrals import Array
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
