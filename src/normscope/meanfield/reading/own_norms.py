"""Layer and root-mean-square normalizations that a model defines itself, known by what they do."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_SIZES = {"last": (3, 4), "first": (3, 4, 4)}  # of a probe, beside the channels


class OwnNorm(NamedTuple):
    """A normalization of each position over its channels.

    Attributes:
        scale: its parameter; None without one.
        shift: likewise.
        centred: whether it subtracts the mean.
        last: whether the channels are in the last dimension, else in the first after the batch.
        eps: added to the variance.
    """

    scale: Tensor | None
    shift: Tensor | None
    centred: bool
    last: bool
    eps: float


def own_norm(module: nn.Module | None) -> OwnNorm | None:
    """Return what a module normalizes, if its outputs are those of a normalization.

    The module is compared with layer and root-mean-square normalization on a few random tensors,
    in double precision and with random parameters.

    Args:
        module: any module.

    Returns:
        None if it is not a normalization over channels, or one of torch.
    """
    if module is None or not _may_normalize(module):
        return None
    names = [name for name, _ in module.named_parameters(recurse=False)]
    parameters = [module.get_parameter(name) for name in names]
    probe = copy.deepcopy(module).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in probe.parameters():
            each.copy_(torch.rand(each.shape, generator=generator).double() + 0.5)
    drawn = [each.detach() for each in probe.parameters()]
    eps = _eps(module)
    for where, sizes in _SIZES.items():
        last, width = where == "last", len(parameters[0])
        shape = (*sizes, width) if last else (sizes[0], width, *sizes[1:])
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        try:
            with torch.no_grad():
                found = probe(x)
        except Exception:  # a user's module may fail in any way
            continue
        for centred in (True, False):
            if _equal(found, _expected(x, drawn, centred, last, eps)):
                scale, *shift = parameters
                return OwnNorm(scale, shift[0] if shift else None, centred, last, eps)
    return None


def _may_normalize(module: nn.Module) -> bool:
    own = [*module.parameters(recurse=False)]
    if type(module).__module__.startswith(("torch.nn.", "normscope.")) or [*module.children()]:
        return False
    one_size = len({tuple(each.shape) for each in own}) == 1 and own[0].dim() == 1
    return 0 < len(own) <= 2 and one_size and len(own[0]) > 1 and not [*module.buffers()]


def _eps(module: nn.Module) -> float:
    """Return the number among the attributes that can be added to a variance."""
    values = [value for value in vars(module).values() if isinstance(value, float)]
    return next((value for value in values if 0 < value < 0.01), 0.0)


def _expected(x: Tensor, parameters: list[Tensor], centred: bool, last: bool, eps: float) -> Tensor:
    dim = -1 if last else 1
    if centred:
        x = x - x.mean(dim, keepdim=True)
    x = x * torch.rsqrt(x.square().mean(dim, keepdim=True) + eps)
    shape = [-1] if last else [-1, *[1] * (x.dim() - 2)]
    scale, *shift = (each.reshape(shape) for each in parameters)
    return scale * x + (shift[0] if shift else 0.0)


def _equal(found: Any, expected: Tensor) -> bool:
    same = isinstance(found, Tensor) and found.shape == expected.shape
    return same and torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-4)
