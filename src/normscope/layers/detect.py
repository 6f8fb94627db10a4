"""Which modules are norm layers, and of which kind: by class, or by what they carry."""

from __future__ import annotations

import math

from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from normscope.layers.kinds import NoNorm
from normscope.layers.lp_norm import LpNorm1d, LpNorm2d, LpNorm3d
from normscope.layers.noisy import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d
from normscope.problem.modes import is_batch_norm as is_batch_norm
from normscope.problem.modes import refuse_lazy as refuse_lazy

_LP_NORMS = (LpNorm1d, LpNorm2d, LpNorm3d)
_NOISY_NORMS = (NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d)
_SAMPLE_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _InstanceNorm)
_LP_KINDS = {1.0: "l1", 2.0: "l2", math.inf: "linf"}


def is_lp_norm(module: nn.Module) -> bool:
    """Whether the module is l_p normalization over the batch (:class:`normscope.layers.LpNorm1d`).

    Args:
        module: any module.

    Returns:
        True if it divides by the batch's p-norm.
    """
    return isinstance(module, _LP_NORMS)


def is_norm(module: nn.Module) -> bool:
    """Whether the module normalizes: over the batch, or over each sample (layer, group, ...).

    Args:
        module: any module.

    Returns:
        True for batch, l_p, layer, group, instance and RMS normalization; False for a
        :class:`normscope.layers.kinds.NoNorm`, which only keeps a place.

    Raises:
        StateError: if it is a lazy layer that does not know its channels yet.

    >>> is_norm(nn.LayerNorm(3)), is_norm(nn.Linear(3, 3)), is_norm(NoNorm(3, 0))
    (True, False, False)
    """
    if isinstance(module, _SAMPLE_NORMS):
        refuse_lazy(module)
        return True
    return is_batch_norm(module) or is_lp_norm(module)


def norm_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The norm layers of a model by qualified name, in order of registration.

    Args:
        model: any module; it may be a norm layer itself, whose name is then "".

    Returns:
        Name to layer; a layer that stands at several places is there once, under its first name.

    Raises:
        StateError: if a lazy norm layer does not know its channels yet.

    >>> list(norm_layers(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU())))
    ['1']
    """
    return {name: module for name, module in model.named_modules() if is_norm(module)}


def kind_of(module: nn.Module) -> str | None:
    """The kind of normalization of a module, by its name in ``normscope.layers.kinds.NORMS``.

    Args:
        module: any module.

    Returns:
        The name; None if the module does not normalize or is of a kind without a name here
        (instance and RMS normalization, l_p for other p). One group is layer normalization.

    Raises:
        StateError: if it is a lazy layer that does not know its channels yet.

    >>> kind_of(nn.BatchNorm2d(3)), kind_of(nn.GroupNorm(1, 4)), kind_of(nn.GroupNorm(2, 4))
    ('batch', 'layer', 'group')
    """
    if isinstance(module, NoNorm):
        return "none"
    if isinstance(module, nn.GroupNorm):
        return "layer" if module.num_groups == 1 else "group"
    if isinstance(module, nn.LayerNorm):
        return "layer"
    if isinstance(module, _LP_NORMS):
        return _LP_KINDS.get(module.p)
    if isinstance(module, _NOISY_NORMS):
        return "noisy"
    return "batch" if is_batch_norm(module) else None
