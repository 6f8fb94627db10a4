"""A norm layer at inference: its affine map, and what else it does after normalizing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.layers.detect import is_lp_norm

_OWN_FORWARDS = ("torch.nn.modules.", "normscope.layers.")


def affine_map(layer: Any) -> tuple[Tensor, Tensor]:
    r"""Scale and shift per channel of a batch norm or l_p layer in eval mode.

    .. math:: y = a x + b, \qquad a = \gamma / \sqrt{Var[x] + \epsilon}, \qquad b = \beta - a E[x]

    An l_p layer has :math:`a = \gamma / s` with s its running scale. Reference: ioffe2015,
    Algorithm 2. Notation: a = scale, b = shift.

    Args:
        layer: a layer that keeps running statistics.

    Returns:
        Scale and shift, float64 on the CPU, of shape (channels,).

    >>> scale, shift = affine_map(nn.BatchNorm1d(1, eps=3.0))
    >>> scale.item(), shift.item()
    (0.5, 0.0)
    """
    mean = layer.running_mean.detach().to("cpu", torch.float64)
    if is_lp_norm(layer):
        scale = layer.running_scale.detach().to("cpu", torch.float64).reciprocal()
    else:
        scale = (layer.running_var.detach().to("cpu", torch.float64) + layer.eps).rsqrt()
    if layer.weight is not None:
        scale = scale * layer.weight.detach().to("cpu", torch.float64)
    shift = -scale * mean
    if layer.bias is not None:
        shift = shift + layer.bias.detach().to("cpu", torch.float64)
    return scale, shift


def modules_after(layer: nn.Module) -> list[nn.Module] | None:
    """The modules that a norm layer applies after it has normalized, e.g. a fused activation.

    torch's and our own layers apply none. A class with a ``forward`` of its own is tried out in
    eval mode, on a copy: it may be plain normalization, or that followed by its child modules in
    their order.

    Args:
        layer: a norm layer.

    Returns:
        The modules, an empty list for plain normalization; None if the layer does something else.

    >>> modules_after(nn.BatchNorm2d(3))
    []
    """
    if "forward" not in vars(layer) and type(layer).forward.__module__.startswith(_OWN_FORWARDS):
        return []
    children = list(layer.children())
    for x in _trial_inputs(layer):
        try:
            if _applies(layer, [], x):
                return []
            return children if _applies(layer, children, x) else None
        except Exception:  # a foreign forward may fail in any way
            continue
    return None


def _applies(layer: nn.Module, after: Sequence[nn.Module], x: Tensor) -> bool:
    """Whether the layer, with neutral parameters, equals normalization followed by ``after``."""
    trial, expected = _neutral_copy(layer), _neutral_copy(layer)
    tail = copy.deepcopy(nn.Sequential(*after)).to("cpu", torch.float64).eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        output, reference = trial(x.clone()), tail(_normalized(expected, x))
    return output.shape == reference.shape and torch.allclose(output, reference, 1e-6, 1e-6)


def _neutral_copy(layer: nn.Module) -> nn.Module:
    """Scale 1 and shift 0, so that a function that follows cannot hide in a far-off range."""
    neutral = copy.deepcopy(layer).to("cpu", torch.float64).eval()
    values = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
    values["running_scale"] = 1.0
    for name, value in values.items():
        tensor = getattr(neutral, name, None)
        if isinstance(tensor, Tensor):
            nn.init.constant_(tensor, value)
    return neutral


def _normalized(layer: nn.Module, x: Tensor) -> Tensor:
    for base in type(layer).__mro__:
        if base is not nn.Module and base.__module__.startswith(_OWN_FORWARDS):
            result: Tensor = base.forward(layer, x)  # type: ignore[attr-defined]  # a norm class
            return result
    scale, shift = affine_map(layer)
    shape = (-1, *[1] * (x.dim() - 2))
    return x * scale.reshape(shape) + shift.reshape(shape)


def _trial_inputs(layer: Any) -> list[Tensor]:
    """Inputs of both signs and of several sizes, from vectors to volumes."""
    features = getattr(layer, "normalized_shape", None)
    shapes: list[tuple[int, ...]] = [(4, *features)] if features else []
    if not features:
        channels = getattr(layer, "num_features", None) or layer.num_channels
        shapes = [(4, channels, *[3] * dimensions) for dimensions in (2, 0, 1, 3)]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    waves = [10 * torch.sin(1.7 * torch.arange(size, dtype=torch.float64)) for size in sizes]
    return [wave.reshape(shape) for wave, shape in zip(waves, shapes, strict=True)]
