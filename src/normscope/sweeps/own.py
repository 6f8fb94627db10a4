"""A user's own model, data and loss in a sweep, by their places.

A worker finds them anew for every cell. What a cell is known by in the store holds a digest of the
files they stand in, so that an edited model does not take the results of the one before.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from normscope.data import Dataset
from normscope.data.dataset import Split
from normscope.errors import ArgumentTypeError, InputError, StateError
from normscope.layers import convert
from normscope.layers.detect import norm_layers
from normscope.places import found_at, home_of, is_place, made_at
from normscope.registry import unknown_name

__all__ = [
    "OWN_NORM",
    "check_source",
    "own_data",
    "own_network",
    "own_places",
    "scales",
    "source_digest",
    "source_version",
]

OWN_NORM = "own"  # the normalization of a user's model as it stands
_HELD_OUT = 5  # one sample of so many, where a user's data has no test split
_DIGITS = 12  # of a digest


def own_places(names: Sequence[str]) -> list[str]:
    """Those of some names that are places and not registered.

    >>> own_places(["digits", "my_model.py:build"])
    ['my_model.py:build']
    """
    return [name for name in names if is_place(name, "build")]


def source_digest(places: Sequence[str]) -> str | None:
    """A digest of the files that places stand in; None for no places.

    Args:
        places: the user's objects.

    Returns:
        Such as ``sha256-1f40fc92da24``; what those files import is not in it.
    """
    if not places:
        return None
    whole = hashlib.sha256()
    for path in sorted({home_of(place).resolve() for place in places}):
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256-{whole.hexdigest()[:_DIGITS]}"  # never read as a number


def source_version(place: str) -> str:
    """What tells one state of a place's file from another: where it is and what it holds."""
    return f"{home_of(place).resolve()} {source_digest([place])}"


def check_source(places: Sequence[str], expected: str | None) -> None:
    """Refuse to compute a cell by other code than it is known by.

    Raises:
        StateError: if a file has another content.
    """
    if expected is not None and source_digest(places) != expected:
        raise StateError(
            f"the code of {' and '.join(places)} is no longer that of this sweep ({expected}); "
            "start the sweep again without code, and its cells are new ones."
        )


def own_network(
    place: str,
    seed: int,
    norm: str,
    gamma: float,
    options: Mapping[str, Any],
    settings: Sequence[str] = (),
) -> nn.Module:
    """A user's network before training.

    Args:
        place: of its factory.
        seed: torch's, set before the factory is called.
        norm: kind of normalization to convert it to; "own": as it stands.
        gamma: initial scale of every norm layer that has one.
        options: the factory's arguments.
        settings: names of the other settings, which a wrong argument may have meant.

    Returns:
        The network.

    Raises:
        ArgumentTypeError: if it is no factory, or makes something else.
    """
    if isinstance(found_at(place), nn.Module):
        raise ArgumentTypeError(
            f"{place} is one model, and every cell of a sweep needs a new one; give the place of a "
            "function that makes it."
        )
    _refuse_unknown(place, options, settings)
    network = made_at(place, seed, options)
    if not isinstance(network, nn.Module):
        raise ArgumentTypeError(
            f"{place} must return a torch.nn.Module, got {type(network).__name__}."
        )
    _refuse_repeated(place, network)
    if norm != OWN_NORM:
        network = convert(network, to=norm)
    for scale in scales(network):
        scale.data.fill_(gamma)
    return network


_made: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # parameters by their identity


def _refuse_unknown(place: str, options: Mapping[str, Any], settings: Sequence[str]) -> None:
    """Refuse arguments that a factory does not have: most likely a setting that is misspelt."""
    target = found_at(place)
    if not options or not callable(target):
        return
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # a function of C tells nothing
        return
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            raise unknown_name(f"setting or argument of {place}", name, [*settings, *parameters])


def _refuse_repeated(place: str, network: nn.Module) -> None:
    """Refuse parameters that an earlier call gave too: a cell would go on where one ended."""
    for parameter in network.parameters():
        if _made.get(id(parameter)) is parameter:
            raise InputError(
                f"{place} returns the same weights at every call; let it make a new model each "
                "time."
            )
        _made[id(parameter)] = parameter


def scales(network: nn.Module) -> list[Tensor]:
    """The scales of a network's norm layers, one tensor for each that has them."""
    found = (getattr(layer, "weight", None) for layer in norm_layers(network).values())
    return [weight for weight in found if isinstance(weight, Tensor)]


@functools.lru_cache(maxsize=4)
def own_data(place: str, version: str) -> Dataset:
    """A user's data; loaded once in each process.

    Args:
        place: of a function that returns one pair (inputs, targets), of which every fifth sample
            (of a fixed shuffle) is held out for the test; or a pair of such pairs, training and
            test; or a Dataset.
        version: of its file, as `source_version` tells it; another one is loaded anew.

    Returns:
        The data set.

    Raises:
        ArgumentTypeError: if it returns something else.
    """
    found = made_at(place, seed=0)
    if isinstance(found, Dataset):
        return found
    if _is_pair(found, Tensor):
        train, test = _held_out(place, *found)
    elif _is_pair(found, (tuple, list)) and all(_is_pair(each, Tensor) for each in found):
        train, test = (Split(*each) for each in found)
    else:
        raise ArgumentTypeError(
            f"{place} must return a pair of tensors (inputs, targets) of all samples, or two such "
            f"pairs (training, test), for a sweep; got {type(found).__name__}."
        )
    for split in (train, test):
        _check_split(place, split)
    labels = not train.y.is_floating_point()
    classes = map(str, range(int(train.y.max()) + 1)) if labels else ()
    return Dataset(place, train, test, tuple(classes))


def _is_pair(found: Any, kind: type | tuple[type, ...]) -> bool:
    return (
        isinstance(found, (tuple, list))
        and len(found) == len(Split._fields)
        and all(isinstance(each, kind) for each in found)
    )


def _check_split(place: str, split: Split) -> None:
    inputs, targets = split
    if not (inputs.dim() and targets.dim() and len(inputs) == len(targets) and len(inputs)):
        raise InputError(
            f"{place} must return as many targets as inputs, and some of each; got shapes "
            f"{tuple(inputs.shape)} and {tuple(targets.shape)}."
        )
    if not targets.is_floating_point() and targets.dim() > 1:
        raise InputError(
            f"{place} must return one whole number for each sample as its class, or real numbers "
            f"to learn; got whole numbers of shape {tuple(targets.shape)}."
        )
    for what, values in (("inputs", inputs), ("targets", targets)):
        if not torch.isfinite(values).all():
            raise InputError(f"{place} returns {what} that are infinite or not a number.")


def _held_out(place: str, inputs: Tensor, targets: Tensor) -> tuple[Split, Split]:
    _check_split(place, Split(inputs, targets))
    if len(inputs) < _HELD_OUT:
        raise InputError(
            f"{place} must return at least {_HELD_OUT} samples, of which one in {_HELD_OUT} is "
            f"held out for the test; got {len(inputs)}."
        )
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    is_test = torch.arange(len(inputs)) % _HELD_OUT == 0
    train, test = order[~is_test], order[is_test]
    return Split(inputs[train], targets[train]), Split(inputs[test], targets[test])
