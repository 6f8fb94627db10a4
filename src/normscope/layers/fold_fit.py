"""Whether the affine map of a norm layer fits into the weights of a layer beside it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from normscope.layers.fold_weights import (
    Convolution,
    Layer,
    Transposed,
    in_channels,
    out_channels,
)


def spatial_dimensions(module: nn.Module) -> int | None:
    """The dimensions in the name of a layer's class, torch's or ours; None if it does not say.

    Args:
        module: a norm or convolution layer.

    Returns:
        1, 2 or 3; a layer for vectors says 1.

    >>> spatial_dimensions(nn.BatchNorm2d(3)), spatial_dimensions(nn.SyncBatchNorm(3))
    (2, None)
    """
    for base in type(module).__mro__:
        if base.__module__.startswith(("torch.nn.", "normscope.layers.")):
            digit = base.__name__[-2:-1]
            if base.__name__.endswith("d") and digit in {"1", "2", "3"}:
                return int(digit)
    return None


def misfit_before(norm: Any, layer: Layer) -> str | None:
    """Why a norm layer cannot be folded into the layer before it; None if it can.

    Args:
        norm: the norm layer, plain in eval mode.
        layer: the layer whose output it takes.

    Returns:
        The reason, or None.
    """
    if out_channels(layer) != norm.num_features:
        return f"{type(layer).__name__} before it gives {out_channels(layer)} channels"
    return _other_dimensions(norm, layer)


def misfit_after(norm: Any, layer: Layer, flattened: bool, shift: Tensor) -> str | None:
    """Why a norm layer cannot be folded into the layer after it; None if it can.

    Args:
        norm: the norm layer, plain in eval mode.
        layer: the layer that takes its output.
        flattened: whether the output is flattened in between.
        shift: the summand per channel of the norm layer's affine map.

    Returns:
        The reason, or None.
    """
    kind = type(layer).__name__
    if flattened:
        fits = isinstance(layer, nn.Linear) and layer.in_features % norm.num_features == 0
        return None if fits else f"{kind} after it does not take its channels flattened"
    if in_channels(layer) != norm.num_features:
        return f"{kind} after it takes {in_channels(layer)} channels"
    if isinstance(layer, Convolution) and bool((shift != 0).any()) and _sees_zeros(layer):
        return f"{kind} after it pads with zeros, which the shift would change"
    return _other_dimensions(norm, layer)


def _other_dimensions(norm: nn.Module, layer: Layer) -> str | None:
    dimensions = spatial_dimensions(norm)
    expected = 1 if isinstance(layer, nn.Linear) else spatial_dimensions(layer)
    if dimensions in (None, expected):
        return None
    return f"it has {dimensions} spatial dimensions, {type(layer).__name__} beside it has not"


def _sees_zeros(layer: Convolution) -> bool:
    """Whether some outputs miss contributions of the input, as beyond a border padded by zeros."""
    if isinstance(layer, Transposed):
        return True
    if layer.padding_mode != "zeros":
        return False  # pads with values of the input, which are shifted as well
    if layer.padding == "same":
        return any(size > 1 for size in layer.kernel_size)
    return layer.padding != "valid" and any(int(size) > 0 for size in layer.padding)
