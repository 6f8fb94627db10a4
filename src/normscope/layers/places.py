"""The places of a model where norm layers stand, and what a norm layer there must fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn

from normscope.errors import InputError
from normscope.layers.detect import is_lp_norm, is_norm
from normscope.layers.fold_fit import spatial_dimensions
from normscope.layers.fold_weights import in_channels, out_channels
from normscope.layers.kinds import NoNorm
from normscope.layers.tracing import PLAIN_LAYERS

_OPTIONS = (
    "eps", "affine", "bias", "momentum", "track_running_stats", "centred", "process_group",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a norm layer stands or stood.

    Attributes:
        name: its qualified name.
        module: the norm layer, or the :class:`NoNorm` that keeps its place.
        num_features: channels.
        dimensions: spatial dimensions, 0 for vectors.
        options: ``eps``, ``affine``, ``momentum``, ``track_running_stats``, ``centred``,
            ``process_group``, as far as it has them; ``bias`` where that is False.
        like: a tensor on the device and in the dtype of a norm layer there.
    """

    name: str
    module: nn.Module
    num_features: int
    dimensions: int
    options: dict[str, Any]
    like: Tensor


def norm_places(model: nn.Module) -> list[Place]:
    """The places of all norm layers, present and removed, each module once.

    Args:
        model: any model.

    Returns:
        The places in order of registration.

    Raises:
        InputError: if the spatial dimensions at a place cannot be told.
        StateError: if a lazy norm layer does not know its channels yet.

    >>> [(p.num_features, p.dimensions) for p in norm_places(nn.Sequential(nn.BatchNorm2d(5)))]
    [(5, 2)]
    """
    found = []
    for name, module in model.named_modules():
        if isinstance(module, NoNorm) or is_norm(module):
            features, dimensions = _size(model, name, module)
            like = _like([module, model])
            found.append(Place(name, module, features, dimensions, _options(module), like))
    return found


def layer_dimensions(layer: nn.Module) -> int:
    """Spatial dimensions of a linear (0) or convolution layer.

    Args:
        layer: an ``nn.Linear`` or a convolution.

    Returns:
        0 to 3.
    """
    return 0 if isinstance(layer, nn.Linear) else spatial_dimensions(layer) or 0


def _like(modules: list[nn.Module]) -> Tensor:
    for module in modules:
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                return tensor
    return torch.empty(0)


def _options(module: Any) -> dict[str, Any]:
    if isinstance(module, NoNorm):
        return {name: value for name, value in module.options.items() if name in _OPTIONS}
    options = {"eps": module.eps, "affine": getattr(module, "weight", None) is not None}
    if options["eps"] is None:  # RMSNorm's word for the smallest that matters in its dtype
        del options["eps"]
    if options["affine"] and getattr(module, "bias", module.weight) is None:
        options["bias"] = False
    if hasattr(module, "running_mean") and hasattr(module, "momentum"):
        options["momentum"] = module.momentum
        options["track_running_stats"] = module.running_mean is not None
    if is_lp_norm(module):
        options["centred"] = module.centred
    group = getattr(module, "process_group", None)
    if isinstance(module, nn.SyncBatchNorm) and distributed.is_available():
        # It shares its statistics with the whole world by default, but only where there is one.
        group = (group or "world") if distributed.is_initialized() else None
    return options if group is None else options | {"process_group": group}


def _size(model: nn.Module, name: str, module: Any) -> tuple[int, int]:
    """Channels and spatial dimensions at a place."""
    if isinstance(module, NoNorm):
        return module.num_features, module.dimensions
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return module.normalized_shape[0], len(module.normalized_shape) - 1
    features: int = module.num_channels if isinstance(module, nn.GroupNorm) else module.num_features
    named = spatial_dimensions(module)
    if named in (2, 3):
        return features, named
    nearby = _dimensions_nearby(model, name, features)
    if named == 1:  # vectors or sequences: what fits sequences fits both
        return features, next((d for d in nearby if d <= 1), 1)
    for dimensions in nearby:
        return features, dimensions
    raise InputError(
        f"{type(module).__name__} {name!r} does not say how many spatial dimensions its input has, "
        "and no linear or convolution layer of the model does; replace it by hand."
    )


def _dimensions_nearby(model: nn.Module, name: str, features: int) -> Iterator[int]:
    """Dimensions of the layers that fit, from the likeliest: before, after, anywhere."""
    modules = list(model.named_modules())
    position = [other for other, _ in modules].index(name)
    before = [m for _, m in modules[:position] if isinstance(m, PLAIN_LAYERS)]
    after = [m for _, m in modules[position:] if isinstance(m, PLAIN_LAYERS)]
    yield from (layer_dimensions(m) for m in reversed(before) if out_channels(m) == features)
    yield from (layer_dimensions(m) for m in after if in_channels(m) == features)
    yield from (layer_dimensions(m) for m in [*reversed(before), *after])
