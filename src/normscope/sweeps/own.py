"""A user's own model, data and loss in a sweep, by their places.

A worker finds them anew for every cell. What a cell is known by in the store holds a digest of the
files they stand in, so that an edited model does not take the results of the one before.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.data import Dataset
from normscope.data.dataset import Split
from normscope.errors import ArgumentTypeError, InputError, StateError
from normscope.layers import convert
from normscope.layers.detect import norm_layers
from normscope.places import home_of, is_place, made_at

__all__ = [
    "OWN_NORM",
    "check_source",
    "own_data",
    "own_network",
    "own_places",
    "scales",
    "source_digest",
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
    place: str, seed: int, norm: str, gamma: float, options: Mapping[str, Any]
) -> nn.Module:
    """A user's network before training.

    Args:
        place: of its factory.
        seed: torch's, set before the factory is called.
        norm: kind of normalization to convert it to; "own": as it stands.
        gamma: initial scale of every norm layer that has one.
        options: the factory's arguments.

    Returns:
        The network.

    Raises:
        ArgumentTypeError: if the factory makes something else.
    """
    network = made_at(place, seed, options)
    if not isinstance(network, nn.Module):
        raise ArgumentTypeError(
            f"{place} must return a torch.nn.Module, got {type(network).__name__}."
        )
    if norm != OWN_NORM:
        network = convert(network, to=norm)
    for scale in scales(network):
        scale.data.fill_(gamma)
    return network


def scales(network: nn.Module) -> list[Tensor]:
    """The scales of a network's norm layers, one tensor for each that has them."""
    found = (getattr(layer, "weight", None) for layer in norm_layers(network).values())
    return [weight for weight in found if isinstance(weight, Tensor)]


@functools.lru_cache(maxsize=4)
def own_data(place: str) -> Dataset:
    """A user's data; loaded once in each process.

    Args:
        place: of a function that returns one pair (inputs, targets), of which every fifth sample
            (of a fixed shuffle) is held out for the test; or a pair of such pairs, training and
            test; or a Dataset.

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
        if len(split.x) != len(split.y) or not len(split.x):
            raise InputError(
                f"{place} must return as many targets as inputs, and some of each; got "
                f"{len(split.x)} inputs and {len(split.y)} targets."
            )
    labels = not train.y.is_floating_point()
    classes = map(str, range(int(train.y.max()) + 1)) if labels else ()
    return Dataset(place, train, test, tuple(classes))


def _is_pair(found: Any, kind: type | tuple[type, ...]) -> bool:
    return (
        isinstance(found, (tuple, list))
        and len(found) == len(Split._fields)
        and all(isinstance(each, kind) for each in found)
    )


def _held_out(place: str, inputs: Tensor, targets: Tensor) -> tuple[Split, Split]:
    if len(inputs) != len(targets) or len(inputs) < _HELD_OUT:
        raise InputError(
            f"{place} must return as many targets as inputs, at least {_HELD_OUT}; got "
            f"{len(inputs)} inputs and {len(targets)} targets."
        )
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    is_test = torch.arange(len(inputs)) % _HELD_OUT == 0
    train, test = order[~is_test], order[is_test]
    return Split(inputs[train], targets[train]), Split(inputs[test], targets[test])
