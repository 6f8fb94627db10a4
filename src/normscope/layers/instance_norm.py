"""The kind "instance": torch's instance normalization."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from normscope.errors import InputError
from normscope.layers.kinds import SAMPLE_OPTIONS, norm_kind, refuse_lazy

_LAYERS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def _is_instance_norm(module: nn.Module) -> bool:
    if not isinstance(module, _InstanceNorm):
        return False
    refuse_lazy(module)
    return True


@norm_kind("instance", matches=_is_instance_norm, options=SAMPLE_OPTIONS, channelwise=True)
def instance_norm(
    num_features: int, dimensions: int, affine: bool = True, **options: Any
) -> nn.Module:
    """Normalization of each channel of a sample over its positions.

    Reference: ulyanov2016.
    """
    if dimensions == 0:
        raise InputError(
            "instance normalization averages over the positions of a channel, but a vector has one "
            "value per channel; choose layer, rms, group or batch."
        )
    return _LAYERS[dimensions - 1](num_features, affine=affine, **options)
