"""The same model with another kind of normalization."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from normscope.layers.detect import is_batch_norm, kind_of
from normscope.layers.fold_weights import Layer, out_channels
from normscope.layers.inference import modules_after
from normscope.layers.insert import Gap, gaps, insert
from normscope.layers.kinds import NORMS, NoNorm, group_count, normalization
from normscope.layers.places import Place, layer_dimensions, norm_places
from normscope.problem.diagnose import require_module

if TYPE_CHECKING:
    import pandas as pd

_logger = logging.getLogger("normscope.layers")

_BATCH_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_RUNNING = ("momentum", "track_running_stats")
_LACKS = {
    "batch": ("centred",),
    "noisy": ("centred",),
    "l1": ("bias", "process_group"),
    "l2": ("bias", "process_group"),
    "linf": ("bias", "process_group"),
    "layer": ("centred", "process_group", *_RUNNING),
    "group": ("centred", "process_group", *_RUNNING),
    "none": (),
}


@dataclass(frozen=True)
class Change:
    """What :func:`convert` does at one place.

    Attributes:
        name: qualified name of the norm layer, or of the layer after which one is inserted.
        before: kind (or class) of the norm layer; None where one is inserted.
        after: kind of the new one.
        kept: names of the tensors it takes over.
        added: names of the parameters it has and the norm layer before had not.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain texts and lists."""
        return {**vars(self), "kept": list(self.kept), "added": list(self.added)}

    def to_dataframe(self) -> pd.DataFrame:
        """One row."""
        from normscope.results.frame import frame

        return frame([self.to_dict()])

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        tensors = {"kept": ", ".join(self.kept) or None, "added": ", ".join(self.added) or None}
        return pairs_html({"before": self.before, "after": self.after, **tensors}, self.name)


def convert(model: nn.Module, to: str) -> nn.Module:
    """A copy of the model whose norm layers are all of one kind.

    Norm layers are torch's, ours, their subclasses, and what looks like batch norm
    (:mod:`normscope.layers.detect`). A new layer takes over scale and shift where the shapes agree,
    ``eps``, ``momentum``, ``affine``, ``bias``, ``track_running_stats``, ``centred`` and
    ``process_group`` (that of an ``nn.SyncBatchNorm`` if ``torch.distributed`` runs) where its kind
    has them, the running statistics between batch and noisy, and device, dtype, training mode and
    ``requires_grad``; not the hooks.
    Where they are not taken over, running statistics start afresh: set them by
    :func:`normscope.layers.population_statistics`. An activation fused into a norm layer stays,
    behind the new one. A layer that stands at several places stays shared, and a scale or shift
    that is taken over stays tied. A layer that is of the
    kind already stays, so converting twice is converting once; torch's batch norm becomes ours for
    ``to="batch"``, ``nn.SyncBatchNorm`` stays.

    To "none", a layer leaves a :class:`normscope.layers.kinds.NoNorm` in its place, where a later
    conversion finds it. A net of nested ``nn.Sequential`` without any norm layer, also inside a
    module that only calls such one after the other, gets one after every linear or convolution
    layer but the last.

    What a channel is cannot be read off the layer: ``nn.LayerNorm(n)`` is taken to see vectors
    (batch, n), so in a sequence model, whose channels come last, it must not be converted to
    batch or group norm. Each change is logged at level INFO by the logger ``normscope.layers``;
    :func:`plan_conversion` lists them beforehand.

    Args:
        model: any model; it stays as it is.
        to: none, batch, noisy, l1, l2, linf, layer or group.

    Returns:
        The new model, of the same class.

    Raises:
        UnknownNameError: if there is no such kind.
        InputError: if the model has no norm layers and is not made of ``nn.Sequential`` or its last
            layer is also a hidden one, if a norm layer's class does something more than normalize,
            or if its dimensions cannot be told.
        StateError: if a lazy norm layer does not know its channels yet.
        ArgumentTypeError: if the model is no module.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
        >>> [type(module).__name__ for module in convert(convert(net, "batch"), "layer")]
        ['Conv2d', 'GroupNorm', 'ReLU', 'Conv2d']
    """
    new_for: dict[int, Any] = {}
    steps = _steps(model, to, new_for)
    # Handing deepcopy what is new puts it wherever the model refers to what it replaces.
    result = copy.deepcopy(model, new_for)
    for step in reversed(steps):  # from the end, so that the keys before stay what they are
        if step.gap is not None:
            container = result.get_submodule(step.gap.container)
            insert(cast(nn.Sequential, container), step.gap.key, step.new)
    for step in steps:
        _logger.info("%s", step.change)
    return result


def plan_conversion(model: nn.Module, to: str) -> list[Change]:
    """What :func:`convert` would change.

    Args:
        model: any model; it stays as it is.
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
    return [step.change for step in _steps(model, to, {})]


@dataclass(frozen=True)
class _Step:
    """A change with the new layer and, unless it replaces another, the gap it fills."""

    change: Change
    new: nn.Module
    gap: Gap | None = None


def _steps(model: nn.Module, to: str, new_for: dict[int, Any]) -> list[_Step]:
    """The steps; by id of each layer and tensor that goes, ``new_for`` gets what comes for it."""
    require_module(model, "convert")
    _ = NORMS[to]  # an unknown kind is an error even where there is nothing to do
    places = norm_places(model)
    if places:
        return [_replacement(place, to, new_for) for place in places if not _is_already(place, to)]
    return [] if to == "none" else [_insertion(gap, to) for gap in gaps(model)]


def _is_already(place: Place, to: str) -> bool:
    module = place.module
    if isinstance(module, nn.GroupNorm) and to == "group":
        return module.num_groups > 1 or group_count(module.num_channels, place.dimensions) == 1
    if to == "batch" and kind_of(module) == "batch":
        return isinstance(module, BatchNorm1d | BatchNorm2d | BatchNorm3d | nn.SyncBatchNorm)
    return kind_of(module) == to


def _replacement(place: Place, to: str, new_for: dict[int, Any]) -> _Step:
    old = place.module
    after = modules_after(old)
    if after is None:
        raise InputError(
            f"{type(old).__name__} {place.name!r} does more than normalize, or otherwise, so "
            "convert cannot replace it without losing that; replace it by hand."
        )
    norm = _made(to, place.num_features, place.dimensions, place.like, place.options)
    kept = _take_over(norm, old, new_for)
    added = () if isinstance(old, NoNorm) else _added(norm, old)
    change = Change(place.name, kind_of(old) or type(old).__name__, to, kept, added)
    new = nn.Sequential(norm, *copy.deepcopy(after)) if after else norm
    new_for[id(old)] = new.train(old.training)
    return _Step(change, new)


def _insertion(gap: Gap, to: str) -> _Step:
    layer = cast(Layer, gap.layer)
    norm = _made(to, out_channels(layer), layer_dimensions(layer), layer.weight, {})
    return _Step(Change(gap.layer_name, None, to), norm.train(layer.training), gap=gap)


def _made(
    to: str, num_features: int, dimensions: int, like: Tensor, options: dict[str, Any]
) -> nn.Module:
    """A norm layer with the options that its kind takes, on the device and in the dtype of like."""
    taken = {name: value for name, value in options.items() if name not in _LACKS[to]}
    if to != "none":
        taken |= {"device": like.device, "dtype": like.dtype}
    return normalization(to, num_features, dimensions, **taken)


def _added(new: nn.Module, old: nn.Module) -> tuple[str, ...]:
    names = [name for name, _ in new.named_parameters()]
    return tuple(name for name in names if getattr(old, name, None) is None)


def _take_over(new: nn.Module, old: nn.Module, new_for: dict[int, Any]) -> tuple[str, ...]:
    """Copy the tensors that mean the same in both layers, tied ones once; their names."""
    names = ["weight", "bias"]
    if is_batch_norm(new) and is_batch_norm(old):
        names += _BATCH_STATISTICS
    kept = []
    for name in names:
        source, target = getattr(old, name, None), getattr(new, name, None)
        if isinstance(source, Tensor) and isinstance(target, Tensor):
            if source.shape != target.shape:
                continue
            with torch.no_grad():
                target.copy_(source)
            target.requires_grad_(source.requires_grad)
            setattr(new, name, new_for.setdefault(id(source), target))
            kept.append(name)
    return tuple(kept)
