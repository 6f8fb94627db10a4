"""Convert a model to another kind of normalization."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normscope.errors import InputError
from normscope.interrupts import interrupt_safe
from normscope.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normscope.layers.detect import positionwise_norm, weight_norm_of
from normscope.layers.kinds import (
    NORMS,
    NoNorm,
    PositionNorm,
    kind_of,
    normalization,
)
from normscope.layers.sample_norms import group_count
from normscope.layers.surgery.fused_modules import modules_after
from normscope.layers.surgery.sites import Site, insert, insertion_sites, norm_sites
from normscope.problem.copies import copy_module
from normscope.problem.error_messages import require_module
from normscope.problem.isolation import RandomGenerators
from normscope.problem.modes import is_batch_norm
from normscope.problem.sharded import gather_shards
from normscope.problem.wrappers import refuse_sharded
from normscope.text import Rendered, Table

_logger = logging.getLogger("normscope.layers")

_BATCH_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Change(Rendered):
    """One change that :func:`convert` makes.

    Attributes:
        name: qualified name of the norm layer, or of the layer after which one is inserted.
        before: kind (or class) of the norm layer; None for an insertion.
        after: kind of the new layer.
        kept: names of the tensors that the new layer copies from the old one.
        added: names of the parameters that only the new layer has.
    """

    name: str
    before: str | None
    after: str
    kept: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.before is None:
            return f"after {self.name}: {self.after} inserted"
        kept = f"keeps {', '.join(self.kept)}" if self.kept else "keeps nothing"
        added = f", adds {', '.join(self.added)}" if self.added else ""
        return f"{self.name or 'model'}: {self.before} -> {self.after}, {kept}{added}"

    def _table(self) -> Table:
        tensors = {"kept": ", ".join(self.kept) or None, "added": ", ".join(self.added) or None}
        return Table({"before": self.before, "after": self.after, **tensors}, self.name)


@interrupt_safe
@gather_shards
def convert(model: nn.Module, to: str) -> nn.Module:
    """Return a copy of the model whose norm layers are all of one kind.

    Norm layers are torch's, ours, their subclasses, and look-alikes of batch norm
    (:func:`normscope.layers.is_norm`). The new layer copies from the old one:

    - scale and shift if the shapes agree; running statistics between batch and noisy;
    - ``eps``, ``momentum``, ``affine``, ``bias``, ``track_running_stats``, ``centred`` and
      ``process_group`` (of an ``nn.SyncBatchNorm`` if ``torch.distributed`` is initialized), if
      its kind has them;
    - device, dtype, training mode and ``requires_grad``, but not hooks.

    Running statistics that are not copied are reset; set them by
    :func:`normscope.layers.population_statistics`. An activation fused into a norm layer is kept
    after the new one. Shared layers stay shared, and copied scales and shifts stay tied. A layer
    that is already of the kind is kept, so converting twice has no further effect. For
    ``to="batch"`` torch's batch norm becomes ours; ``nn.SyncBatchNorm`` is kept.

    With "none", a :class:`normscope.layers.NoNorm` replaces each layer, which a later conversion
    finds. A model without norm layers made of nested ``nn.Sequential``, also inside a module that
    only calls such containers one after the other, gets a norm layer after every linear or
    convolution layer but the last.

    Layer and RMS normalization of the last dimension, as in transformers, are converted position by
    position: for (batch, tokens, features), layer, rms, group and dyt treat each token by itself,
    and batch, noisy and l_p take statistics per feature over batch and tokens
    (:class:`normscope.layers.PositionNorm`). **In a causal language model such statistics contain
    later tokens**, so its losses with them are not those of a model that predicts. The same holds
    for normalization over the channels at each position of an image (ConvNeXt). RMSNorm and
    LayerNorm classes of other libraries are recognized by what they compute.

    Weight norm and spectral norm of linear and convolution layers stay as they are. The random
    number generators and the model, including the vectors of spectral norm, are not changed.

    Each change is logged at level INFO by the logger ``normscope.layers``;
    :func:`plan_conversion` returns the changes without making them.

    Args:
        model: any model; it is not changed.
        to: none, batch, noisy, l1, l2, linf, layer, group, rms, instance or dyt.

    Returns:
        The new model, of the same class.

    Raises:
        UnknownNameError: if there is no such kind.
        InputError: if the model has no norm layers and is not made of ``nn.Sequential`` or its last
            layer is also a hidden one, if a norm layer does more than normalize or is
            parametrized, if its number of dimensions is unknown, or if the kind does not fit its
            inputs (instance for vectors and tokens).
        StateError: if a lazy norm layer does not know its channels yet, or an attribute is a
            function that refers to the model by a global name.
        ArgumentTypeError: if the model is not a module.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
        >>> [type(module).__name__ for module in convert(convert(net, "batch"), "layer")]
        ['Conv2d', 'GroupNorm', 'ReLU', 'Conv2d']
    """
    return convert_layers(model, to)


def convert_layers(model: nn.Module, to: str, vectors: Collection[str] = ()) -> nn.Module:
    """Return what :func:`convert` does, with some more known about the model.

    Args:
        model: any model; it is not changed.
        to: a kind of normalization.
        vectors: names of norm layers whose inputs are vectors, (batch, features).

    Returns:
        The new model.
    """
    new_for: dict[int, Any] = {}
    with RandomGenerators(model).preserved():  # a norm layer may draw its first parameters
        steps = _steps(model, to, new_for, vectors)
        # deepcopy puts the new objects wherever the model refers to those they replace.
        result = copy_module(model, new_for)
    for _, new, site in reversed(steps):  # from the end, so that earlier keys stay valid
        if site.container is not None:
            container = cast(nn.Sequential, result.get_submodule(site.container))
            insert(container, site.key, new)
    if steps:
        _disable_fused_encoders(result)
    for change, _, _ in steps:
        _logger.info("%s", change)
    return result


def _disable_fused_encoders(model: nn.Module) -> None:
    """Let torch's encoder layers call their norm layers.

    In eval mode without gradients they run a fused kernel, which is layer normalization with the
    weights of ``norm1`` and ``norm2``, whatever these modules are.
    """
    for module in model.modules():
        if not isinstance(module, nn.TransformerEncoderLayer | nn.TransformerEncoder):
            continue
        layers = [each for each in module.modules() if isinstance(each, nn.TransformerEncoderLayer)]
        norms = [norm for layer in layers for norm in (layer.norm1, layer.norm2)]
        if all(type(norm) is nn.LayerNorm for norm in norms):
            continue
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # which it reads only to choose the kernel
        else:
            module.use_nested_tensor = False


def plan_conversion(model: nn.Module, to: str) -> list[Change]:
    """Return the changes that :func:`convert` would make.

    Args:
        model: any model; it is not changed.
        to: a kind of normalization.

    Returns:
        One entry per norm layer that is replaced or inserted; empty if nothing changes.

    Raises:
        UnknownNameError: if there is no such kind.
        InputError: as :func:`convert`.
        StateError: as :func:`convert`.
        ArgumentTypeError: as :func:`convert`.

    >>> print(*plan_conversion(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), "layer"))
    1: batch -> layer, keeps weight, bias
    """
    with RandomGenerators(model).preserved():
        return [change for change, _, _ in _steps(model, to, {})]


_Step = tuple[Change, nn.Module, Site]  # with the new layer, and where it goes


def _steps(
    model: nn.Module, to: str, new_for: dict[int, Any], vectors: Collection[str] = ()
) -> list[_Step]:
    """Return the steps; ``new_for`` gets the replacement of each layer and tensor by its id."""
    require_module(model, "convert")
    refuse_sharded(model)
    _ = NORMS[to]  # an unknown kind is an error even if there is nothing to do
    sites = norm_sites(model, vectors)
    if sites:
        return [_replacement(site, to, new_for) for site in sites if not _is_already(site, to)]
    return [] if to == "none" else [_insertion(site, to) for site in insertion_sites(model)]


def _is_already(site: Site, to: str) -> bool:
    module = site.norm
    if isinstance(module, nn.GroupNorm) and to == "group":
        return module.num_groups > 1 or group_count(module.num_channels, site.dimensions) == 1
    if to == "batch" and kind_of(module) == "batch":
        return isinstance(module, BatchNorm1d | BatchNorm2d | BatchNorm3d | nn.SyncBatchNorm)
    return kind_of(module) == to


def _replacement(site: Site, to: str, new_for: dict[int, Any]) -> _Step:
    old = site.norm
    if weight_norm_of(old) is not None or parametrize.is_parametrized(old):
        raise InputError(
            f"{type(old).__name__} {site.name!r} has reparametrized tensors, which convert would "
            "drop with the layer; remove the parametrization first."
        )
    after = modules_after(old)
    if after is None:
        raise InputError(
            f"{type(old).__name__} {site.name!r} does more than normalize, or otherwise, so "
            "convert cannot replace it without losing that; replace it by hand."
        )
    made = _make(site, to)
    norm = made.norm if isinstance(made, PositionNorm) else made
    kept = _copy_tensors(norm, old, new_for)
    names = [] if isinstance(old, NoNorm) else [name for name, _ in norm.named_parameters()]
    added = tuple(name for name in names if getattr(old, name, None) is None)
    change = Change(site.name, kind_of(old) or type(old).__name__, to, kept, added)
    new = nn.Sequential(made, *copy.deepcopy(after)) if after else made
    new_for[id(site.module)] = new.train(old.training)
    return change, new, site


def _insertion(site: Site, to: str) -> _Step:
    return Change(site.name, None, to), _make(site, to).train(site.module.training), site


def _make(site: Site, to: str) -> nn.Module:
    """Return a norm layer for a site, with the options that its kind takes."""
    accepted = NORMS[to].options
    options = {name: value for name, value in site.options.items() if name in accepted}
    size = site.num_features, site.dimensions
    if site.feature_axis is None and to == "layer" and isinstance(site.norm, nn.GroupNorm):
        # fits any number of dimensions, which the layers nearby only suggest
        options.pop("bias", None)
        layer: nn.Module = nn.GroupNorm(1, site.num_features, **options)
    elif site.feature_axis is None:
        layer = normalization(to, *size, **options)
    else:
        channels, dimensions = size
        layer = normalization_at_positions(to, channels, site.feature_axis, dimensions, **options)
    return layer.to(site.like.device, site.like.dtype)


def normalization_at_positions(
    kind: str, num_features: int, feature_axis: int, dimensions: int = 0, **options: Any
) -> nn.Module:
    """Make a norm layer of a kind that takes the place of normalization at each position.

    Args:
        kind: a name in ``NORMS``.
        num_features: features at a position.
        feature_axis: -1 for (..., features), 1 for (batch, features, *positions).
        dimensions: spatial dimensions behind the features, if their axis is 1.
        **options: passed to the layer.

    Returns:
        A layer of the kind that takes such inputs, or a :class:`PositionNorm` around one.

    Raises:
        InputError: if the kind is "instance" and the features are last, where the positions of a
            sample are unknown.

    >>> normalization_at_positions("rms", 3, -1).normalized_shape
    (3,)
    >>> type(normalization_at_positions("batch", 3, -1).norm).__name__
    'BatchNorm1d'
    """
    known = NORMS[kind]
    if kind == "none":
        return NoNorm(num_features, dimensions, feature_axis, **options)
    if feature_axis == 1 and known.channelwise:
        return normalization(kind, num_features, dimensions, **options)
    if kind == "instance":
        raise InputError(
            "instance normalization averages each channel over the positions of a sample, but "
            "layers that normalize the last dimension, as in a transformer, normalize each "
            "position by itself; choose layer, rms, batch or dyt."
        )
    layer = normalization(kind, num_features, 0, **options)
    if feature_axis == -1 and known.features_last:
        return layer
    return PositionNorm(layer, feature_axis, dimensions)


def _copy_tensors(new: nn.Module, old: nn.Module, new_for: dict[int, Any]) -> tuple[str, ...]:
    """Copy the tensors that have the same meaning in both layers; return their names."""
    names = ["weight", "bias"]
    if is_batch_norm(new) and is_batch_norm(old):
        names += _BATCH_STATISTICS
    found, kept = positionwise_norm(old), []
    for name in names:
        source, target = getattr(old, name, None), getattr(new, name, None)
        if isinstance(source, Tensor) and isinstance(target, Tensor):
            if source.shape != target.shape:
                continue
            with torch.no_grad():
                target.copy_(source)
                if name == "weight" and found is not None:
                    target.add_(found.offset)
            target.requires_grad_(source.requires_grad)
            setattr(new, name, new_for.setdefault(id(source), target))  # tied tensors stay tied
            kept.append(name)
    return tuple(kept)
