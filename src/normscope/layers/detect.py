"""Normalization recognized by what a module computes, or by how its weights are reparametrized.

Many libraries define layer and RMS normalization themselves, under many names and for features
in the last dimension or in the second. A name and a weight make a module a candidate; it counts if
a copy of it gives the values of the definition.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm, _WeightNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from normscope.problem.hooks import defining_module
from normscope.problem.isolation import RandomGenerators

OWN_FORWARDS = ("torch.nn.modules.", "normscope.layers.")
"""Modules whose layers compute what their class says."""

_NAMES = ("rmsnorm", "layernorm")  # in the name of a class, without case and underscores
_EPSILONS = ("eps", "variance_epsilon", "epsilon")
_TOLERANCE = 1e-5  # some layers compute in float32 whatever the input
_WEIGHT_NORMS: dict[type, str] = {
    WeightNorm: "weight_norm",
    _WeightNorm: "weight_norm",
    SpectralNorm: "spectral_norm",
    _SpectralNorm: "spectral_norm",
}


@dataclass(frozen=True)
class PositionwiseNorm:
    """Normalization of the features at each position.

    Attributes:
        kind: "layer" or "rms".
        feature_axis: -1 for (..., features), 1 for (batch, features, *positions).
        dimensions: spatial dimensions behind the features; 0 if they are last.
        followed: whether the module then applies its child modules in order.
        offset: added to ``weight`` to give the scale; 1 in Gemma's RMSNorm.
    """

    kind: str
    feature_axis: int = -1
    dimensions: int = 0
    followed: bool = False
    offset: float = 0.0


_FOUND: weakref.WeakKeyDictionary[nn.Module, PositionwiseNorm] = weakref.WeakKeyDictionary()


def positionwise_norm(module: nn.Module) -> PositionwiseNorm | None:
    """Return how a module normalizes the features at each position; None if it does not.

    Torch's layers are known by their class. Other classes are candidates if they derive from one,
    or if their name contains RMSNorm or LayerNorm and they own a vector ``weight`` and an epsilon.
    A copy of a candidate runs on trial inputs, with other weights, and must give the values of
    layer or RMS normalization, scaled by ``weight`` or by 1 + ``weight``. The module itself is not
    changed.

    Args:
        module: any module.

    Returns:
        What it computes. None also for normalization over several dimensions.

    Reference: ba2016; zhang2019.

    >>> positionwise_norm(nn.LayerNorm(3)).kind, positionwise_norm(nn.LayerNorm([3, 2]))
    ('layer', None)
    """
    if not is_candidate(module):
        return None
    if "forward" not in vars(module):
        own = defining_module(type(module).forward).startswith(OWN_FORWARDS)
        if own and isinstance(module, nn.LayerNorm | nn.RMSNorm):
            return PositionwiseNorm("layer" if isinstance(module, nn.LayerNorm) else "rms")
    if module not in _FOUND:
        found = _identify(module)
        if found is None:
            return None
        _FOUND[module] = found
    return _FOUND[module]


def is_candidate(module: nn.Module) -> bool:
    """Return whether a module may be layer or RMS normalization of a vector of features.

    >>> is_candidate(nn.RMSNorm(3)), is_candidate(nn.LayerNorm([3, 2])), is_candidate(nn.ReLU())
    (True, False, False)
    """
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return len(module.normalized_shape) == 1
    name = type(module).__name__.lower().replace("_", "")
    if not any(each in name for each in _NAMES):
        return False
    # not the attribute: reading a parametrized weight may change its state
    weight = module._parameters.get("weight")
    return weight is not None and weight.dim() == 1 and epsilon(module) is not None


def epsilon(module: nn.Module) -> float | None:
    """Return the epsilon of a norm layer, under any of its usual names; None if it has none.

    >>> epsilon(nn.LayerNorm(3, eps=0.5))
    0.5
    """
    values = (vars(module).get(name) for name in _EPSILONS)
    return next((value for value in values if isinstance(value, float | int)), None)


def feature_count(module: Any) -> int:
    """Return the number of features of a candidate."""
    weight = module._parameters.get("weight")
    return int(module.normalized_shape[0] if weight is None else weight.numel())


def _identify(module: nn.Module) -> PositionwiseNorm | None:
    children = list(module.children())
    for axis, dimensions, x in _trial_inputs(feature_count(module)):
        try:
            trial = trial_copy(module)
            tail = copy.deepcopy(nn.Sequential(*children)).to("cpu", torch.float64).eval()
            with torch.no_grad(), RandomGenerators().preserved():
                output = trial(x.clone())
                for kind, offset in itertools.product(("layer", "rms"), (0.0, 1.0)):
                    y = _normalized(trial, x, kind, axis, offset)
                    for followed in (False, True) if children else (False,):
                        if _agree(output, tail(y.clone()) if followed else y):
                            return PositionwiseNorm(kind, axis, dimensions, followed, offset)
        except Exception:  # not of these dimensions; a user's forward may fail in any way
            continue
    return None


def _trial_inputs(features: int) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the feature axis, the spatial dimensions and an input of large and small values.

    One feature of the largest is far above the others, so that clamped outputs are detected too.
    """
    sizes = [size for size in (2, 3, 5) if size != features]
    shapes = [(3, sizes[0], features), (3, features, *sizes[:2]), (3, features, sizes[0])]
    for (axis, dimensions), shape in zip(((-1, 0), (1, 2), (1, 1)), shapes, strict=True):
        count = torch.Size(shape).numel()
        x = 10 * torch.sin(1.7 * torch.arange(count, dtype=torch.float64)).reshape(shape)
        x[1] *= 1e-3  # here the epsilon matters
        x[2] *= 1e3
        x[2].movedim(axis - (axis > 0), -1)[..., 0] *= 1e3
        yield axis, dimensions, x


def _normalized(trial: Any, x: Tensor, kind: str, axis: int, offset: float) -> Tensor:
    """Return the values by the definition."""
    last = x.movedim(axis, -1)
    if kind == "layer":
        last = last - last.mean(-1, keepdim=True)
    y = last * torch.rsqrt(last.square().mean(-1, keepdim=True) + (epsilon(trial) or 0.0))
    weight, bias = getattr(trial, "weight", None), getattr(trial, "bias", None)
    y = y if weight is None else y * (offset + weight)
    return (y if bias is None else y + bias).movedim(-1, axis)


def _agree(output: Any, expected: Tensor) -> bool:
    same = isinstance(output, Tensor) and output.shape == expected.shape
    return same and torch.allclose(output.double(), expected, _TOLERANCE, _TOLERANCE)


def trial_copy(layer: nn.Module) -> nn.Module:
    """Return a copy with scales of both signs, and shifts and statistics that are not default.

    So everything that is done to them is detected. They are small, so that the outputs cover the
    range where activations differ from the identity.
    """
    trial = copy.deepcopy(layer).to("cpu", torch.float64).eval()
    for phase, name in enumerate(("weight", "bias", "running_mean", "running_var")):
        _fill(getattr(trial, name, None), phase, positive=name == "running_var")
    _fill(getattr(trial, "running_scale", None), 4, positive=True)
    return trial


def _fill(tensor: object, phase: int, positive: bool) -> None:
    """Fill with absolute values from 0.5 to 1.5, and alternating signs unless ``positive``."""
    if isinstance(tensor, Tensor):
        steps = torch.arange(tensor.numel(), dtype=torch.float64)
        sizes = 1 + 0.5 * torch.sin(2.3 * steps + phase)
        values = sizes if positive else sizes * (2 * (steps % 2) - 1)
        with torch.no_grad():
            tensor.copy_(values.reshape(tensor.shape))


def weight_norm_of(module: nn.Module) -> str | None:
    """Return "weight_norm" or "spectral_norm" if a module's weights are normalized so, else None.

    Both forms of torch are recognized: hooks (``torch.nn.utils``) and parametrizations
    (``torch.nn.utils.parametrizations``). The weights are not read.

    Reference: salimans2016; miyato2018.

    >>> weight_norm_of(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    'weight_norm'
    """
    owners: list[Any] = list(module._forward_pre_hooks.values())
    behind = module._modules.get("parametrizations")
    if behind is not None:
        owners += behind.modules()
    return next((name for each in owners if (name := _WEIGHT_NORMS.get(type(each)))), None)
