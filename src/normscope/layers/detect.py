"""Which modules are norm layers, and of which kind: by class, or by what they carry.

A class not known here counts as batch normalization if it carries what such a layer needs in order
to switch between batch and running statistics (``num_features``, ``eps``, ``momentum``,
``running_mean``, ``running_var``). A frozen layer, which has no ``momentum``, does not.
"""

from __future__ import annotations

import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

from normscope.errors import StateError
from normscope.layers.kinds import NoNorm
from normscope.layers.lp_norm import LpNorm1d, LpNorm2d, LpNorm3d
from normscope.layers.noisy import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d

_BATCH_NORM_MARKS = ("num_features", "eps", "momentum", "running_mean", "running_var")
_LP_NORMS = (LpNorm1d, LpNorm2d, LpNorm3d)
_NOISY_NORMS = (NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d)
_SAMPLE_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _InstanceNorm)
_LP_KINDS = {1.0: "l1", 2.0: "l2", math.inf: "linf"}


def is_batch_norm(module: nn.Module) -> bool:
    """Whether the module is batch normalization: torch's, ours, a subclass or a look-alike.

    Args:
        module: any module.

    Returns:
        True if it subtracts the batch mean and divides by the batch standard deviation in training.

    Raises:
        StateError: if it is a lazy layer that does not know its channels yet.

    >>> is_batch_norm(nn.SyncBatchNorm(3)), is_batch_norm(nn.InstanceNorm2d(3))
    (True, False)
    """
    if isinstance(module, _BatchNorm):
        refuse_lazy(module)
        return True
    marked = all(hasattr(module, mark) for mark in _BATCH_NORM_MARKS)
    return marked and not isinstance(module, _InstanceNorm)


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


def refuse_lazy(module: nn.Module) -> None:
    """Raise if the module is a lazy layer that has not seen any input.

    Args:
        module: any module.

    Raises:
        StateError: if it does not know its shape yet.
    """
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        raise StateError(
            f"{type(module).__name__} does not know its shape yet; "
            "pass one batch through the model first."
        )
