"""Kinds of normalization by name: how to make a layer of a kind, and how to recognize one.

To add a kind, put a file with its layer and a factory decorated with :func:`norm_kind` into this
package. Nothing else lists the kinds. Those over the batch are here, the others in `sample_norms`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError
from normscope.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normscope.layers.detect import weight_norm_of
from normscope.layers.lp_norm import LpNorm1d, LpNorm2d, LpNorm3d
from normscope.layers.noisy import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d
from normscope.problem.modes import is_batch_norm
from normscope.registry import Registry

NormFactory = Callable[..., nn.Module]
Matches = Callable[[nn.Module], bool]

# By the number of spatial dimensions; the layers for sequences also take vectors.
_BATCH_NORMS = (BatchNorm1d, BatchNorm1d, BatchNorm2d, BatchNorm3d)
_NOISY_NORMS = (NoisyBatchNorm1d, NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d)
_LP_NORMS = (LpNorm1d, LpNorm1d, LpNorm2d, LpNorm3d)

_RUNNING = ("momentum", "track_running_stats")
_BATCH_OPTIONS = ("eps", "affine", "bias", "process_group", *_RUNNING)
_LP_OPTIONS = ("eps", "affine", "centred", *_RUNNING)


@dataclass(frozen=True)
class NormKind:
    """A kind of normalization.

    Attributes:
        make: makes a layer from (num_features, dimensions, **options).
        matches: whether a module is of this kind.
        options: names of the options that ``make`` takes, besides device and dtype.
        layers: classes that only normalize, so that another layer can replace them.
        summary: one line of description.
        features_last: whether the layer for vectors also takes (..., features), and treats each
            position by itself.
        channelwise: whether a channel is treated without the others.
    """

    make: NormFactory
    matches: Matches
    options: tuple[str, ...]
    layers: tuple[type[nn.Module], ...]
    summary: str
    features_last: bool = False
    channelwise: bool = False

    def __call__(self, num_features: int, dimensions: int, **options: Any) -> nn.Module:
        """Make a layer."""
        return self.make(num_features, dimensions, **options)


NORMS: Registry[NormKind] = Registry("normalization", package="normscope.layers")
"""The kinds of normalization by name."""


def norm_kind(
    name: str,
    *layers: type[nn.Module],
    matches: Matches | None = None,
    options: Sequence[str] | None = None,
    features_last: bool = False,
    channelwise: bool = False,
) -> Callable[[NormFactory], NormFactory]:
    """Return a decorator that registers a factory as a kind of normalization.

    Args:
        name: of the kind.
        *layers: the classes of its layers.
        matches: whether a module is of this kind; by default, whether it is of these classes.
        options: options that the factory takes; by default its keyword parameters.
        features_last: whether the layer for vectors also takes (..., features), and treats each
            position by itself.
        channelwise: whether a channel is treated without the others.

    Returns:
        The decorator, which returns the factory unchanged.

    Raises:
        DuplicateNameError: when decorating, if there is a kind of that name.
    """

    def register(factory: NormFactory) -> NormFactory:
        named = [*inspect.signature(factory).parameters][2:] if options is None else options
        test = matches or (lambda module: isinstance(module, layers))
        summary = (factory.__doc__ or "").strip().partition("\n")[0]
        flags = features_last, channelwise
        NORMS.register(name=name)(NormKind(factory, test, tuple(named), layers, summary, *flags))
        return factory

    return register


class NoNorm(nn.Identity):
    """Placeholder for a norm layer: returns its input.

    It remembers what a norm layer at its position must fit, so that
    :func:`normscope.layers.convert` can replace it by one.

    Args:
        num_features: channels of the input.
        dimensions: spatial dimensions of the input, 0 for vectors.
        feature_axis: axis of the features, -1 or 1, if a norm layer here treats each position by
            itself, as in a transformer; None for (batch, channels, *positions).
        **options: options of a norm layer at this position, e.g. ``eps``.
    """

    feature_axis: int | None = None  # of the class, for layers that were pickled without it

    def __init__(
        self, num_features: int, dimensions: int, feature_axis: int | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.dimensions = dimensions
        self.feature_axis = feature_axis
        self.options = options

    def extra_repr(self) -> str:
        """Return the arguments, for the printed module."""
        axis = "" if self.feature_axis is None else f", feature_axis={self.feature_axis}"
        return f"{self.num_features}, dimensions={self.dimensions}{axis}"


class PositionNorm(nn.Module):
    """Apply a norm layer for vectors to the features at every position.

    All positions of all samples are the rows of one matrix, (rows, features). Batch normalization
    so takes its statistics per feature over batch and positions, such as the tokens of a
    transformer; layer, group and RMS normalization take those of each position.

    In a causal language model, statistics over tokens contain later tokens: the prediction of a
    token then depends on tokens that it must not know.

    Args:
        norm: a norm layer for (rows, features).
        feature_axis: -1 for (..., features), 1 for (batch, features, *positions).
        dimensions: spatial dimensions behind the features, which a later conversion may need.

    >>> import torch
    >>> tokens = torch.randn(8, 5, 3, generator=torch.Generator().manual_seed(0))
    >>> y = PositionNorm(nn.BatchNorm1d(3))(tokens)
    >>> bool(y.mean((0, 1)).abs().max() < 1e-6)
    True
    """

    def __init__(self, norm: nn.Module, feature_axis: int = -1, dimensions: int = 0) -> None:
        super().__init__()
        self.norm = norm
        self.feature_axis = feature_axis
        self.dimensions = dimensions

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the features at every position."""
        last = x.movedim(self.feature_axis, -1)
        rows: Tensor = self.norm(last.reshape(-1, last.shape[-1]))
        return rows.reshape(last.shape).movedim(-1, self.feature_axis)

    def extra_repr(self) -> str:
        """Return the axis of the features, for the printed module."""
        return f"feature_axis={self.feature_axis}"


def normalization(
    kind: str, num_features: int, dimensions: int, gamma: float = 1.0, **options: Any
) -> nn.Module:
    """Make a norm layer of the given kind, with scale ``gamma`` and shift 0.

    Args:
        kind: a name in ``NORMS``: none, batch, noisy, l1, l2, linf, layer, group, rms, instance or
            dyt.
        num_features: channels of the input, which is (batch, channels, *positions).
        dimensions: spatial dimensions of the input: 0 for vectors, else 1, 2 or 3.
        gamma: initial value of the scale (``weight``); no effect for kind none.
        **options: passed to the layer. All kinds take ``affine``, ``device``, ``dtype`` and, except
            dyt, ``eps``; batch, noisy, l1, l2 and linf also ``momentum`` and
            ``track_running_stats``.

    Returns:
        The layer; for kind none a :class:`NoNorm`, which is an ``nn.Identity``.

    Raises:
        UnknownNameError: if there is no such kind.
        InputError: if ``dimensions`` is not 0, 1, 2 or 3, if gamma is given for a layer without
            a scale, or if the kind is instance and there are no spatial dimensions.
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
    weight = getattr(layer, "weight", None)
    if weight is not None:
        nn.init.constant_(weight, gamma)
    elif gamma != 1.0 and not isinstance(layer, NoNorm):
        raise InputError(
            f"a {kind!r} layer with affine=False has no scale, so gamma={gamma} cannot be set; "
            "leave gamma at 1 or make the layer affine."
        )
    return layer


def is_lp_norm(module: nn.Module) -> bool:
    """Return whether the module is l_p normalization (:class:`normscope.layers.LpNorm1d`).

    Args:
        module: any module.

    Returns:
        True if it divides by the p-norm of the batch.
    """
    return isinstance(module, _LP_NORMS)


def averages_over_batch(module: nn.Module) -> bool:
    """Return whether the module is batch or l_p normalization, whose statistics are of the batch.

    >>> averages_over_batch(LpNorm1d(3)), averages_over_batch(nn.LayerNorm(3))
    (True, False)
    """
    return is_batch_norm(module) or is_lp_norm(module)


def batch_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the batch norm and l_p layers of a model by qualified name."""
    return {name: each for name, each in model.named_modules() if averages_over_batch(each)}


def is_norm(module: nn.Module) -> bool:
    """Return whether the module normalizes, over the batch or over each sample (layer, group).

    Args:
        module: any module.

    Returns:
        True for l_p normalization and for every registered kind; False for a :class:`NoNorm`, and
        for a layer whose weights are normalized (weight norm, spectral norm).

    Raises:
        StateError: if it is a lazy layer that does not know its channels yet.

    >>> is_norm(nn.LayerNorm(3)), is_norm(nn.Linear(3, 3)), is_norm(NoNorm(3, 0))
    (True, False, False)
    """
    return is_lp_norm(module) or _registered_kind(module) not in (None, "none")


def kind_of(module: nn.Module) -> str | None:
    """Return the kind of normalization of a module, as its name in ``NORMS``.

    Layer and RMS normalization of other libraries are recognized by what they compute.

    Args:
        module: any module.

    Returns:
        The name; "weight_norm" or "spectral_norm" for a layer whose weights are normalized so (by
        ``torch.nn.utils``); None if the module does not normalize or its kind has no name here
        (l_p for other p). GroupNorm with one group is layer normalization.

    Raises:
        StateError: if it is a lazy layer that does not know its channels yet.

    >>> kind_of(nn.BatchNorm2d(3)), kind_of(nn.GroupNorm(1, 4)), kind_of(nn.GroupNorm(2, 4))
    ('batch', 'layer', 'group')
    >>> kind_of(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)))
    'spectral_norm'
    """
    return _registered_kind(module) or weight_norm_of(module)


def _registered_kind(module: nn.Module) -> str | None:
    return next((name for name in NORMS if NORMS[name].matches(module)), None)


def norm_layers(model: nn.Module, weight_norms: bool = False) -> dict[str, nn.Module]:
    """Return the norm layers of a model by qualified name, in order of registration.

    Args:
        model: any module; it may be a norm layer itself, whose name is then "".
        weight_norms: whether to include layers whose weights are normalized, by weight norm or
            spectral norm.

    Returns:
        Name to layer; a shared layer is listed once, under its first name. `kind_of` tells the
        kind of each.

    Raises:
        StateError: if a lazy norm layer does not know its channels yet.

    >>> list(norm_layers(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU())))
    ['1']
    >>> net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)), nn.ReLU())
    >>> {name: kind_of(layer) for name, layer in norm_layers(net, weight_norms=True).items()}
    {'0': 'weight_norm'}
    """
    return {
        name: module
        for name, module in model.named_modules()
        if is_norm(module) or (weight_norms and weight_norm_of(module))
    }


def _is_lp(order: float) -> Matches:
    return lambda module: isinstance(module, _LP_NORMS) and module.p == order


@norm_kind(
    "none",
    NoNorm,
    options=(*_BATCH_OPTIONS, "centred", "shift"),
    features_last=True,
    channelwise=True,
)
def no_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """No normalization: the input passes through."""
    return NoNorm(num_features, dimensions, **options)


@norm_kind(
    "batch",
    matches=lambda module: is_batch_norm(module) and not isinstance(module, _NOISY_NORMS),
    options=_BATCH_OPTIONS,
    channelwise=True,
)
def batch_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Batch normalization.

    Reference: ioffe2015.
    """
    return _BATCH_NORMS[dimensions](num_features, **options)


@norm_kind("noisy", *_NOISY_NORMS, options=_BATCH_OPTIONS, channelwise=True)
def noisy_batch_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Batch normalization followed by noise that changes at every step.

    Reference: santurkar2018, Algorithm 1.
    """
    return _NOISY_NORMS[dimensions](num_features, **options)


@norm_kind("l1", matches=_is_lp(1), options=_LP_OPTIONS, channelwise=True)
def l1_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Division by the batch average of the absolute value.

    Reference: santurkar2018, Section 3.3.
    """
    return _LP_NORMS[dimensions](num_features, p=1, **options)


@norm_kind("l2", matches=_is_lp(2), options=_LP_OPTIONS, channelwise=True)
def l2_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Division by the root of the batch average of the square.

    Reference: santurkar2018, Section 3.3.
    """
    return _LP_NORMS[dimensions](num_features, p=2, **options)


@norm_kind("linf", matches=_is_lp(math.inf), options=_LP_OPTIONS, channelwise=True)
def linf_norm(num_features: int, dimensions: int, **options: Any) -> nn.Module:
    """Division by the largest absolute value in the batch.

    Reference: santurkar2018, Section 3.3.
    """
    return _LP_NORMS[dimensions](num_features, p=math.inf, **options)
