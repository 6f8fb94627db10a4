"""Modules that a norm layer applies after normalizing, such as a fused activation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.layers.detect import OWN_FORWARDS, is_candidate, positionwise_norm, trial_copy
from normscope.layers.kinds import NORMS
from normscope.layers.standardize import along_channels
from normscope.layers.surgery.fold_weights import affine_map
from normscope.problem.hooks import defining_module
from normscope.problem.isolation import RandomGenerators


def modules_after(layer: nn.Module) -> list[nn.Module] | None:
    """Return the modules that a norm layer applies after normalizing, e.g. a fused activation.

    torch's layers, ours and those of registered kinds apply none. A class with another ``forward``
    is tested in eval mode, on a copy: it may be plain normalization, or normalization followed by
    its child modules in order.

    Args:
        layer: a norm layer.

    Returns:
        The modules, an empty list for plain normalization; None if the layer does something else.

    >>> modules_after(nn.BatchNorm2d(3))
    []
    """
    registered = any(type(layer) in NORMS[name].layers for name in NORMS)
    library = registered or defining_module(type(layer).forward).startswith(OWN_FORWARDS)
    if library and "forward" not in vars(layer):
        return []
    children = list(layer.children())
    if is_candidate(layer):
        found = positionwise_norm(layer)
        return None if found is None else children if found.followed else []
    for x in _trial_inputs(layer):
        try:
            if _applies(layer, [], x):
                return []
            return children if _applies(layer, children, x) else None
        except Exception:  # a user's forward may fail in any way
            continue
    return None


def _applies(layer: nn.Module, after: Sequence[nn.Module], x: Tensor) -> bool:
    """Return whether the layer, with trial parameters, is normalization, then ``after``."""
    trial, expected = trial_copy(layer), trial_copy(layer)
    tail = copy.deepcopy(nn.Sequential(*after)).to("cpu", torch.float64).eval()
    with torch.no_grad(), RandomGenerators().preserved():
        output, reference = trial(x.clone()), tail(_normalized(expected, x))
    return output.shape == reference.shape and torch.allclose(output, reference, 1e-6, 1e-6)


def _normalized(layer: nn.Module, x: Tensor) -> Tensor:
    for base in type(layer).__mro__:
        if base is not nn.Module and base.__module__.startswith(OWN_FORWARDS):
            result: Tensor = base.forward(layer, x)  # type: ignore[attr-defined]  # a norm class
            return result
    scale, shift = affine_map(layer)
    return x * along_channels(scale, x) + along_channels(shift, x)


def _trial_inputs(layer: Any) -> list[Tensor]:
    """Return inputs of both signs and of several sizes, from vectors to volumes."""
    features = getattr(layer, "normalized_shape", None)
    shapes: list[tuple[int, ...]] = [(4, *features)] if features else []
    if not features:
        channels = getattr(layer, "num_features", None) or layer.num_channels
        shapes = [(4, channels, *[3] * dimensions) for dimensions in (2, 0, 1, 3)]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    waves = [10 * torch.sin(1.7 * torch.arange(size, dtype=torch.float64)) for size in sizes]
    return [wave.reshape(shape) for wave, shape in zip(waves, shapes, strict=True)]
