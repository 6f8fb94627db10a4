"""The kinds of normalization by name, made for vectors or for 1, 2 or 3 spatial dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from normscope.errors import ArgumentTypeError, InputError
from normscope.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normscope.layers.lp_norm import LpNorm1d, LpNorm2d, LpNorm3d
from normscope.layers.noisy import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d
from normscope.registry import Registry

NormFactory = Callable[..., nn.Module]

NORMS: Registry[NormFactory] = Registry("normalization")
"""The kinds of normalization by name; a factory makes a layer of its kind."""

# By the number of spatial dimensions; the layers for sequences also take vectors.
_BATCH_NORMS = (BatchNorm1d, BatchNorm1d, BatchNorm2d, BatchNorm3d)
_NOISY_NORMS = (NoisyBatchNorm1d, NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d)
_LP_NORMS = (LpNorm1d, LpNorm1d, LpNorm2d, LpNorm3d)

_FEWEST_UNITS = 4  # in a group of a vector


class NoNorm(nn.Identity):
    """The place of a norm layer where there is none: passes its input on.

    It remembers what a norm layer at this place must fit, so that
    :func:`normscope.layers.convert` can put one there.

    Args:
        num_features: channels of the input.
        dimensions: spatial dimensions of the input, 0 for vectors.
        **options: options of the norm layer that may stand here, e.g. ``eps``.
    """

    def __init__(self, num_features: int, dimensions: int, **options: Any) -> None:
        super().__init__()
        self.num_features = num_features
        self.dimensions = dimensions
        self.options = options

    def extra_repr(self) -> str:
        """What the printed module says between its brackets."""
        return f"{self.num_features}, dimensions={self.dimensions}"


def normalization(
    kind: str, num_features: int, dimensions: int, gamma: float = 1.0, **options: Any
) -> nn.Module:
    """A norm layer of the given kind, with scale ``gamma`` and shift 0.

    Args:
        kind: a name in ``NORMS``: none, batch, noisy, l1, l2, linf, layer or group.
        num_features: channels of the input, which is (batch, channels, *positions).
        dimensions: spatial dimensions of the input: 0 for vectors, else 1, 2 or 3.
        gamma: initial value of the scale (``weight``); without effect for kind none.
        **options: passed to the layer. All kinds take ``eps``, ``affine``, ``device``, ``dtype``;
            batch, noisy, l1, l2 and linf also ``momentum`` and ``track_running_stats``.

    Returns:
        The layer; for kind none a :class:`NoNorm`, which is an ``nn.Identity``.

    Raises:
        UnknownNameError: if there is no such kind.
        InputError: if ``dimensions`` is not 0, 1, 2 or 3, or a gamma is given to a layer that has
            no scale.
        ArgumentTypeError: if the kind does not take one of the options.

    >>> normalization("group", 48, 2, gamma=0.5).num_groups
    16
    >>> normalization("layer", 48, 0).normalized_shape
    (48,)
    """
    factory = NORMS[kind]
    if dimensions not in (0, 1, 2, 3):
        raise InputError(
            f"dimensions counts the spatial dimensions, 0 (vectors) to 3; got {dimensions!r}."
        )
    try:
        layer = factory(num_features, dimensions, **options)
    except TypeError as error:
        raise ArgumentTypeError(
            f"a {kind!r} layer cannot be made with {options}: {error}."
        ) from error
    if not isinstance(layer, NoNorm):
        _set_scale(layer, kind, gamma)
    return layer


def _set_scale(layer: nn.Module, kind: str, gamma: float) -> None:
    weight = getattr(layer, "weight", None)
    if weight is not None:
        nn.init.constant_(weight, gamma)
    elif gamma != 1.0:
        raise InputError(
            f"a {kind!r} layer with affine=False has no scale, so gamma={gamma} cannot be set; "
            "leave gamma at 1 or make the layer affine."
        )


@NORMS.register(name="none")
def no_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """No normalization: the input passes through."""
    return NoNorm(num_features, dimensions, **options)


@NORMS.register(name="batch")
def batch_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Batch normalization.

    Reference: ioffe2015.
    """
    return _BATCH_NORMS[dimensions](num_features, **options)


@NORMS.register(name="noisy")
def noisy_batch_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Batch normalization followed by noise that changes at every step.

    Reference: santurkar2018, Algorithm 1.
    """
    return _NOISY_NORMS[dimensions](num_features, **options)


@NORMS.register(name="l1")
def l1_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Division by the batch average of the absolute value.

    Reference: santurkar2018, Section 3.3.
    """
    return _LP_NORMS[dimensions](num_features, p=1, **options)


@NORMS.register(name="l2")
def l2_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Division by the root of the batch average of the square.

    Reference: santurkar2018, Section 3.3.
    """
    return _LP_NORMS[dimensions](num_features, p=2, **options)


@NORMS.register(name="linf")
def linf_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Division by the largest absolute value in the batch.

    Reference: santurkar2018, Section 3.3.
    """
    return _LP_NORMS[dimensions](num_features, p=math.inf, **options)


@NORMS.register(name="layer")
def layer_norm(
    num_features: int, dimensions: int, affine: bool = True, **options: Any
) -> nn.Module:
    """Layer normalization; with spatial dimensions, over channels and positions together.

    Reference: ba2016.
    """
    if dimensions == 0:
        return nn.LayerNorm(num_features, elementwise_affine=affine, **options)
    return nn.GroupNorm(1, num_features, affine=affine, **options)


@NORMS.register(name="group")
def group_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Group normalization in gcd(32, channels) groups; of vectors in fewer, see `group_count`.

    Reference: wu2018.
    """
    return nn.GroupNorm(group_count(num_features, dimensions), num_features, **options)


def group_count(num_features: int, dimensions: int) -> int:
    """Groups of the kind "group": gcd(32, channels); of vectors fewer, at least 4 units in each.

    A group of one or two units that have no positions would normalize away all but their signs.

    Args:
        num_features: channels.
        dimensions: spatial dimensions, 0 for vectors.

    Returns:
        The number of groups.

    >>> group_count(64, 2), group_count(64, 0), group_count(1000, 0)
    (32, 16, 8)
    """
    groups = math.gcd(32, num_features)
    while dimensions == 0 and groups > 1 and num_features // groups < _FEWEST_UNITS:
        groups //= 2
    return groups
