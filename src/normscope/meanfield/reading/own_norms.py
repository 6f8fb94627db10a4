"""Layer and root-mean-square normalizations that a model defines itself."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from normscope.layers.detect import OWN_FORWARDS, epsilon, positionwise_norm


class OwnNorm(NamedTuple):
    """A normalization of each position over its channels.

    Attributes:
        scale: the factor of each channel; None without one.
        shift: the summand of each channel, likewise.
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
    """Return what a module normalizes, if `positionwise_norm` recognizes it by its outputs.

    Args:
        module: any module.

    Returns:
        None if it is not a normalization over channels, or one of torch or normscope.
    """
    if module is None or type(module).__module__.startswith(OWN_FORWARDS):
        return None
    found = positionwise_norm(module)
    if found is None or found.followed:
        return None
    weight, shift = (module._parameters.get(name) for name in ("weight", "bias"))
    scale = None if weight is None else weight.detach() + found.offset
    return OwnNorm(
        scale, shift, found.kind == "layer", found.feature_axis == -1, epsilon(module) or 0.0
    )
