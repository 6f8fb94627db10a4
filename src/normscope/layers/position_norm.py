"""A norm layer for vectors, applied at every position."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from normscope.errors import InputError
from normscope.layers.kinds import NORMS, NoNorm, normalization


class PositionNorm(nn.Module):
    """Apply a norm layer for vectors to the features at every position.

    All positions of all samples are the rows of one matrix, (rows, features). Batch normalization
    so takes its statistics per feature over batch and positions, such as the tokens of a
    transformer; layer, group and RMS normalization take those of each position.

    In a causal language model, statistics over tokens contain later tokens: the prediction of a
    token then depends on tokens that it must not know.

    Args:
        norm: a norm layer for (rows, features).
        feature_axis: -1 for (..., features), 1 for (batch, features, *positions).
        dimensions: spatial dimensions behind the features, which a later conversion may need.

    >>> import torch
    >>> tokens = torch.randn(8, 5, 3, generator=torch.Generator().manual_seed(0))
    >>> y = PositionNorm(nn.BatchNorm1d(3))(tokens)
    >>> bool(y.mean((0, 1)).abs().max() < 1e-6)
    True
    """

    def __init__(self, norm: nn.Module, feature_axis: int = -1, dimensions: int = 0) -> None:
        super().__init__()
        self.norm = norm
        self.feature_axis = feature_axis
        self.dimensions = dimensions

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the features at every position."""
        last = x.movedim(self.feature_axis, -1)
        rows: Tensor = self.norm(last.reshape(-1, last.shape[-1]))
        return rows.reshape(last.shape).movedim(-1, self.feature_axis)

    def extra_repr(self) -> str:
        """Return the axis of the features, for the printed module."""
        return f"feature_axis={self.feature_axis}"


def normalization_at_positions(
    kind: str, num_features: int, feature_axis: int, dimensions: int = 0, **options: Any
) -> nn.Module:
    """Make a norm layer of a kind that takes the place of normalization at each position.

    Args:
        kind: a name in ``NORMS``.
        num_features: features at a position.
        feature_axis: -1 for (..., features), 1 for (batch, features, *positions).
        dimensions: spatial dimensions behind the features, if their axis is 1.
        **options: passed to the layer.

    Returns:
        A layer of the kind that takes such inputs, or a :class:`PositionNorm` around one.

    Raises:
        InputError: if the kind is "instance" and the features are last, where the positions of a
            sample are unknown.

    >>> normalization_at_positions("rms", 3, -1).normalized_shape
    (3,)
    >>> type(normalization_at_positions("batch", 3, -1).norm).__name__
    'BatchNorm1d'
    """
    known = NORMS[kind]
    if kind == "none":
        return NoNorm(num_features, dimensions, feature_axis, **options)
    if feature_axis == 1 and known.channelwise:
        return normalization(kind, num_features, dimensions, **options)
    if kind == "instance":
        raise InputError(
            "instance normalization averages each channel over the positions of a sample, but "
            "layers that normalize the last dimension, as in a transformer, normalize each "
            "position by itself; choose layer, rms, batch or dyt."
        )
    layer = normalization(kind, num_features, 0, **options)
    if feature_axis == -1 and known.features_last:
        return layer
    return PositionNorm(layer, feature_axis, dimensions)
