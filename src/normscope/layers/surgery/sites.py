"""Sites in a model where norm layers are or could be, and what a norm layer there must fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import parametrize

from normscope.errors import InputError
from normscope.layers.detect import epsilon, feature_count, is_candidate, positionwise_norm
from normscope.layers.kinds import NoNorm, PositionNorm, is_lp_norm, is_norm
from normscope.layers.surgery.call_graph import is_sequential
from normscope.layers.surgery.plain_layers import (
    Layer,
    in_channels,
    out_channels,
    spatial_dimensions,
)
from normscope.problem.copies import copy_module, undisturbed
from normscope.problem.hooks import defining_module
from normscope.problem.tracing import trace

_OPTIONS = (
    "eps", "affine", "bias", "shift", "momentum", "track_running_stats", "centred", "process_group",
)  # fmt: skip
# Modules of torch that keep the number of dimensions, by the file that defines them.
_KEEPS_DIMENSIONS = ("linear", "activation", "dropout", "normalization", "batchnorm")


@dataclass(frozen=True)
class Site:
    """Where a norm layer is, was, or can be inserted.

    Attributes:
        name: qualified name of the module.
        module: the norm layer, a :class:`PositionNorm` around it or the :class:`NoNorm` in its
            position; for an insertion, the layer before it.
        num_features: channels.
        dimensions: spatial dimensions, 0 for vectors.
        options: ``eps``, ``affine``, ``momentum``, ``track_running_stats``, ``centred`` and
            ``process_group``, as far as the norm layer has them; ``bias`` if it is False and
            ``shift`` if it is not.
        like: a tensor with the device and dtype of a norm layer here.
        container: for an insertion, qualified name of the ``nn.Sequential``; else None.
        feature_axis: axis of the features, -1 or 1, if a norm layer here treats each position by
            itself; None for (batch, channels, *positions).
    """

    name: str
    module: nn.Module
    num_features: int
    dimensions: int
    options: dict[str, Any]
    like: Tensor
    container: str | None = None
    feature_axis: int | None = None

    @property
    def norm(self) -> nn.Module:
        """The norm layer itself."""
        return self.module.norm if isinstance(self.module, PositionNorm) else self.module

    @property
    def key(self) -> str:
        """Key of the module in its container."""
        return self.name.rpartition(".")[2]


def norm_sites(model: nn.Module, vectors: Collection[str] = ()) -> list[Site]:
    """Return the sites of all norm layers, present and removed, each module once.

    Args:
        model: any model.
        vectors: names of layers whose inputs are known to be vectors, (batch, features). Layers
            that normalize the last dimension are else assumed to get any number of positions,
            unless they come after a flattening in nested ``nn.Sequential``.

    Returns:
        The sites in order of registration.

    Raises:
        InputError: if the number of spatial dimensions of a site is unknown, or a module that is
            named as layer or RMS normalization computes something else.
        StateError: if a lazy norm layer does not know its channels yet.

    >>> [(s.num_features, s.dimensions) for s in norm_sites(nn.Sequential(nn.BatchNorm2d(5)))]
    [(5, 2)]
    """
    wrapped = {id(each.norm) for each in model.modules() if isinstance(each, PositionNorm)}
    return [
        _site(model, name, module, name in vectors)
        for name, module in model.named_modules()
        if id(module) not in wrapped and _is_site(name, module)
    ]


def _is_site(name: str, module: nn.Module) -> bool:
    if isinstance(module, NoNorm | PositionNorm) or is_norm(module):
        return True
    if is_candidate(module):
        raise InputError(
            f"{type(module).__name__} {name!r} looks like a norm layer by its name and weight, but "
            "computes neither layer nor RMS normalization, so convert cannot replace it; replace "
            "it by hand."
        )
    return False


def _site(model: nn.Module, name: str, module: nn.Module, gets_vectors: bool) -> Site:
    norm = module.norm if isinstance(module, PositionNorm) else module
    found = positionwise_norm(norm)
    axis: int | None
    if isinstance(module, PositionNorm):
        axis, size = module.feature_axis, (_features(name, norm), module.dimensions)
    elif found is not None:
        axis, size = found.feature_axis, (feature_count(norm), found.dimensions)
    else:
        axis = norm.feature_axis if isinstance(norm, NoNorm) else None
        size = _size(model, name, norm)
    if axis == -1 and (gets_vectors or _gets_vectors(model, module)):
        axis = None
    return Site(name, module, *size, _options(norm), _like(norm, model), feature_axis=axis)


def _gets_vectors(model: nn.Module, module: nn.Module) -> bool:
    """Return whether a layer is known to get (batch, features) wherever it is."""
    named = model.named_modules(remove_duplicate=False)
    return all(_follows_flattening(model, name) for name, each in named if each is module)


def _follows_flattening(model: nn.Module, name: str) -> bool:
    """Return whether a layer in nested ``nn.Sequential`` is known to get (batch, features)."""
    parent, _, key = name.rpartition(".")
    container = model.get_submodule(parent)
    if not name or not is_sequential(container):
        return False
    before = list(container._modules.values())[: list(container._modules).index(key)]
    found = _gives_vectors(before)
    return bool(parent) and _follows_flattening(model, parent) if found is None else found


def _gives_vectors(modules: Sequence[nn.Module | None]) -> bool | None:
    """Return whether modules called in turn give vectors; None if they keep the dimensions."""
    for module in reversed(modules):
        if isinstance(module, nn.Flatten):
            return (module.start_dim, module.end_dim) == (1, -1)
        if module is not None and is_sequential(module):
            found = _gives_vectors(list(module._modules.values()))
            if found is not None:
                return found
        elif module is not None and not _keeps_dimensions(module):
            return False
    return None


def _keeps_dimensions(module: nn.Module) -> bool:
    defined = defining_module(type(module).forward)
    return defined.startswith("normscope.layers.") or defined in (
        f"torch.nn.modules.{name}" for name in _KEEPS_DIMENSIONS
    )


def _like(*modules: nn.Module) -> Tensor:
    """Return the first floating-point tensor of the modules."""
    for module in modules:
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                return tensor
    return torch.empty(0)


def _options(module: Any) -> dict[str, Any]:
    if isinstance(module, NoNorm):
        return {name: value for name, value in module.options.items() if name in _OPTIONS}
    # not the attributes: reading a parametrized tensor may change its state
    options: dict[str, Any] = {"affine": has_tensor(module, "weight")}
    if (eps := epsilon(module)) is not None:  # None: RMSNorm's default for its dtype
        options["eps"] = eps
    if options["affine"]:
        options |= {"shift": True} if has_tensor(module, "bias") else {"bias": False}
    if hasattr(module, "running_mean") and hasattr(module, "momentum"):
        options["momentum"] = module.momentum
        options["track_running_stats"] = module.running_mean is not None
    if is_lp_norm(module):
        options["centred"] = module.centred
    group = getattr(module, "process_group", None)
    if isinstance(module, nn.SyncBatchNorm) and distributed.is_available():
        # By default it shares its statistics with the whole world, if there is one.
        group = (group or "world") if distributed.is_initialized() else None
    return options if group is None else options | {"process_group": group}


def has_tensor(module: nn.Module, name: str) -> bool:
    """Return whether a module has a tensor of that name, also a parametrized one; not reading it.

    >>> has_tensor(nn.LayerNorm(2), "bias"), has_tensor(nn.RMSNorm(2), "bias")
    (True, False)
    """
    if parametrize.is_parametrized(module, name):
        return True
    slots = (vars(module), module._parameters, module._buffers)
    return any(slot.get(name) is not None for slot in slots)


def _size(model: nn.Module, name: str, module: Any) -> tuple[int, int]:
    """Return the channels and spatial dimensions of a site."""
    if isinstance(module, NoNorm):
        return module.num_features, module.dimensions
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return module.normalized_shape[0], len(module.normalized_shape) - 1
    features = _features(name, module)
    named = spatial_dimensions(module)
    if named in (2, 3):
        return features, named
    nearby = _dimensions_nearby(model, name, features)
    if named == 1:  # vectors or sequences: a layer for sequences fits both
        return features, next((d for d in nearby if d <= 1), 1)
    for dimensions in nearby:
        return features, dimensions
    raise InputError(
        f"{type(module).__name__} {name!r} does not say how many spatial dimensions its input has, "
        "and no linear or convolution layer of the model does; replace it by hand."
    )


def _features(name: str, module: nn.Module) -> int:
    for attribute in ("num_features", "num_channels"):
        if isinstance(features := getattr(module, attribute, None), int):
            return features
    if isinstance(weight := getattr(module, "weight", None), Tensor):
        return weight.numel()
    raise InputError(
        f"{type(module).__name__} {name!r} does not say how many channels it has; give it an "
        "attribute num_features."
    )


def _dimensions_nearby(model: nn.Module, name: str, features: int) -> Iterator[int]:
    """Return dimensions of other layers: matching before, matching after, then any."""
    modules = list(model.named_modules())
    position = [other for other, _ in modules].index(name)
    before = [m for _, m in modules[:position] if isinstance(m, Layer)]
    after = [m for _, m in modules[position:] if isinstance(m, Layer)]
    yield from (_layer_dimensions(m) for m in reversed(before) if out_channels(m) == features)
    yield from (_layer_dimensions(m) for m in after if in_channels(m) == features)
    yield from (_layer_dimensions(m) for m in [*reversed(before), *after])


def _layer_dimensions(layer: nn.Module) -> int:
    """Return the spatial dimensions of a linear (0) or convolution layer."""
    return 0 if isinstance(layer, nn.Linear) else spatial_dimensions(layer) or 0


def insertion_sites(model: nn.Module) -> list[Site]:
    """Return the sites after every linear or convolution layer except the last, the output layer.

    Args:
        model: nested ``nn.Sequential`` containers, and modules whose forward pass calls such
            containers one after the other.

    Returns:
        The sites in order of execution.

    Raises:
        InputError: if a layer is inside another module, where its order of execution is unknown
            or a norm layer cannot be inserted; if the output layer is also a hidden layer.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3)),
    ...                     nn.Linear(3, 1))
    >>> [site.name for site in insertion_sites(net)]
    ['0', '2.0']
    """
    found = list(_layers_in("", model))
    hidden = found[:-1]
    if any(site.module is found[-1].module for site in hidden):
        raise InputError(
            f"layer {found[-1].name!r} gives the output and is used before it as well, so "
            "convert cannot put a norm layer after the hidden use alone; give each its own layer."
        )
    unique: dict[tuple[int, str], Site] = {}  # a container may be shared
    for site in hidden:
        unique.setdefault((id(model.get_submodule(site.container or "")), site.key), site)
    return list(unique.values())


def _layers_in(prefix: str, module: nn.Module) -> Iterator[Site]:
    sequential = is_sequential(module)
    names = list(module._modules) if sequential else _chain_of_calls(module)
    if names is None:
        raise _no_site(prefix, module)
    for name in names:
        child = module._modules[name] if sequential else module.get_submodule(name)
        qualified = f"{prefix}.{name}" if prefix else name
        if isinstance(child, Layer):
            if not sequential:
                raise _no_site(prefix, module)
            size = out_channels(child), _layer_dimensions(child)
            # not child.weight: reading a parametrized weight may change its state
            yield Site(qualified, child, *size, {}, _like(child), prefix)
        elif child is not None and any(isinstance(m, Layer) for m in child.modules()):
            yield from _layers_in(qualified, child)


def _chain_of_calls(module: nn.Module) -> list[str] | None:
    """Return the modules that a forward pass calls, if each takes the output of the one before.

    Args:
        module: a module with one input; it is copied, not changed.

    Returns:
        The names in order; None if the forward pass branches or cannot be traced.

    >>> _chain_of_calls(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    ['0', '1']
    """
    with undisturbed(module):
        result = trace(copy_module(module).eval(), lambda child: True)
    if result is None:
        return None
    _, *rest = result[0].nodes
    if any(node.all_input_nodes != [node.prev] for node in rest):
        return None
    return [str(node.target) for node in rest if node.op == "call_module"]


def _no_site(prefix: str, module: nn.Module) -> InputError:
    kind = type(module).__name__
    what = f"{kind} {prefix!r}" if prefix else f"the model itself ({kind})"
    return InputError(
        f"{what} has layers but no norm layers, and is not an nn.Sequential and does not call such "
        "containers one after the other, so convert cannot know where norm layers belong; build "
        'the model with placeholders for them, e.g. normscope.layers.normalization("none", ...).'
    )


def insert(container: nn.Sequential, key: str, norm: nn.Module) -> None:
    """Insert a norm layer after a layer, in place.

    A container with numbers as keys is renumbered; in one with names, the norm layer is named
    after the layer.

    Args:
        container: contains the layer.
        key: of the layer.
        norm: the norm layer.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> insert(net, "0", nn.BatchNorm1d(3))
    >>> [type(module).__name__ for module in net], list(net._modules)
    (['Linear', 'BatchNorm1d', 'ReLU'], ['0', '1', '2'])
    """
    entries = [(name, module) for name, module in container._modules.items() if module is not None]
    numbered = [name for name, _ in entries] == [str(index) for index in range(len(entries))]
    position = [name for name, _ in entries].index(key) + 1
    entries.insert(position, (f"{key}_norm", norm))
    container._modules.clear()
    for index, (name, module) in enumerate(entries):
        container.add_module(str(index) if numbered else name, module)
