"""A user's own model in a sweep by its place, and the code that it, its data and its loss are of.

A worker finds them anew for every cell. What a cell is known by in the store holds a digest of the
files they stand in, so that an edited model does not take the results of the one before.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError, StateError
from normscope.import_path import import_object, is_import_path, load_object, source_file
from normscope.layers import convert
from normscope.layers.kinds import norm_layers
from normscope.registry import unknown_name
from normscope.results.record import CODE

__all__ = [
    "OWN_NORM",
    "check_source",
    "files_digest",
    "own_network",
    "own_places",
    "scales",
    "source_digest",
    "source_version",
]

OWN_NORM = "own"  # the normalization of a user's model as it stands
_DIGITS = 12  # of a digest


def own_places(names: Sequence[str]) -> list[str]:
    """Those of some names that are places and not registered.

    >>> own_places(["digits", "my_model.py:build"])
    ['my_model.py:build']
    """
    return [name for name in names if is_import_path(name, "build")]


def source_digest(places: Sequence[str]) -> str | None:
    """A digest of the files that places stand in; None for no places.

    Args:
        places: the user's objects.

    Returns:
        Such as ``sha256-1f40fc92da24``; what those files import is not in it.
    """
    return files_digest(map(source_file, places)) if places else None


def files_digest(paths: Iterable[Path]) -> str:
    """A digest of the contents of files, in the order of their paths."""
    whole = hashlib.sha256()
    for path in sorted({path.resolve() for path in paths}):
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256-{whole.hexdigest()[:_DIGITS]}"  # never read as a number


def source_version(place: str) -> str:
    """What tells one state of a place's file from another: where it is and what it holds."""
    return f"{source_file(place).resolve()} {source_digest([place])}"


def check_source(places: Sequence[str], expected: str | None) -> None:
    """Refuse to compute a cell by other code than it is known by.

    Raises:
        StateError: if a file has another content.
    """
    if expected is not None and source_digest(places) != expected:
        raise StateError(
            f"the code of {' and '.join(places)} is no longer that of this sweep ({expected}); "
            "start the sweep again, without a setting code, and its cells are new ones."
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
    if isinstance(import_object(place), nn.Module):
        raise ArgumentTypeError(
            f"{place} is one model, and every cell of a sweep needs a new one; give the place of a "
            "function that makes it."
        )
    _refuse_unknown(place, options, settings)
    network = load_object(place, seed, options)
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
    """Refuse arguments that a factory does not have: most likely a setting that is misspelt.

    Those that it needs and nobody gave can be given as settings.
    """
    target = import_object(place)
    if not callable(target):
        return
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # a function of C tells nothing
        return
    _refuse_missing(place, options, settings, parameters)
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    typed = {*settings, *parameters} - {CODE}
    for name in options:
        if name not in parameters:
            raise unknown_name(f"setting or argument of {place}", name, typed)


def _refuse_missing(
    place: str,
    options: Mapping[str, Any],
    settings: Sequence[str],
    parameters: Mapping[str, inspect.Parameter],
) -> None:
    """Refuse to call a factory without what it needs, where a setting of that name would do."""
    needed = [
        name
        for name, each in parameters.items()
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        and name not in options
    ]
    if needed and not {*needed} & {*settings}:  # a name that is a setting's never comes here
        given = " ".join(f"--set {name}=VALUE" for name in needed)
        raise InputError(
            f"{place} needs {', '.join(needed)}; give {given} (in Python a setting of that name)."
        )


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
