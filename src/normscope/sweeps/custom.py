"""User-defined models, data and losses in a sweep, given by import paths.

A worker imports them again for every cell. The key of a cell's record includes a digest of the
files that define them, so that an edited model does not reuse the results of the previous one.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from normscope.data import Dataset, Split
from normscope.errors import ArgumentTypeError, InputError, StateError
from normscope.import_path import (
    find_source_file,
    import_object,
    is_import_path,
    load_object,
    source_file,
)
from normscope.layers import convert
from normscope.layers.kinds import norm_layers
from normscope.registry import unknown_name
from normscope.results import Record
from normscope.results.record import CODE, custom_parts

MODEL_NORM = "own"  # value of the setting norm: keep the model's own normalization
_DIGITS = 12  # of a digest
_HELD_OUT = 5  # one sample in this many is held out if the data has no test split

_seen_parameters: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # by id
_samples_before_split: dict[tuple[str, str], int] = {}  # by import path and file version


def import_paths(names: Sequence[str]) -> list[str]:
    """Return those of some names that are import paths and not registered names.

    >>> import_paths(["digits", "my_model.py:build"])
    ['my_model.py:build']
    """
    return [name for name in names if is_import_path(name, "build")]


# The code that records depend on


def code_digest(paths: Sequence[str]) -> str | None:
    """Digest of the files of import paths, such as ``sha256-1f40fc92da24``; None without paths.

    Modules that those files import are not included.
    """
    return files_digest(map(source_file, paths)) if paths else None


def files_digest(files: Iterable[Path]) -> str:
    """Digest of the contents of files, in the order of their paths."""
    whole = hashlib.sha256()
    for file in sorted({file.resolve() for file in files}):
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return f"sha256-{whole.hexdigest()[:_DIGITS]}"  # cannot be parsed as a number


def file_version(path: str) -> str:
    """Location and digest of an import path's file, which identify its present state."""
    return f"{source_file(path).resolve()} {code_digest([path])}"


def check_code(paths: Sequence[str], expected: str | None) -> None:
    """Raise if the files of a cell's import paths have changed.

    Raises:
        StateError: if their digest is not the expected one.
    """
    if expected is not None and code_digest(paths) != expected:
        raise StateError(
            f"the code of {' and '.join(paths)} is no longer that of this sweep ({expected}); "
            "start the sweep again, without a setting code, and its cells are new ones."
        )


def outdated_records(records: Iterable[Record]) -> list[Record]:
    """Return the records computed by an earlier version of the user's files.

    Args:
        records: of any experiment; those of registered models, data and losses are never outdated.

    Returns:
        Only records whose files exist here: nothing is known of the others.
    """
    digests: dict[tuple[str, ...], str | None] = {}
    found = []
    for record in records:
        if record.parameters.get(CODE) is None:
            continue
        paths = custom_parts(record.parameters)
        if paths not in digests:
            digests[paths] = _present_digest(paths)
        present = digests[paths]
        if present is not None and record.parameters[CODE] != present:
            found.append(record)
    return found


def _present_digest(paths: tuple[str, ...]) -> str | None:
    """Digest of the files as they are; found without running them, as reading a store must."""
    files = [file for file in map(find_source_file, paths) if file is not None]
    try:
        return files_digest(files) if files and len(files) == len(paths) else None
    except OSError:
        return None


# Models


def build_model(
    path: str,
    seed: int,
    norm: str,
    gamma: float,
    options: Mapping[str, Any],
    settings: Sequence[str] = (),
) -> nn.Module:
    """Build a user's network.

    Args:
        path: import path of its factory.
        seed: torch's, set before the factory is called.
        norm: kind of normalization to convert it to; "own": unchanged.
        gamma: initial scale of every norm layer that has one.
        options: the factory's arguments.
        settings: names of the other settings, suggested for a misspelt argument.

    Raises:
        ArgumentTypeError: if it is not a factory, or does not return a module.
        InputError: if it returns the same parameters as before.
    """
    factory = import_object(path)
    if isinstance(factory, nn.Module):
        raise ArgumentTypeError(
            f"{path} is one model, and every cell of a sweep needs a new one; give the import path "
            "of a function that makes it."
        )
    if callable(factory):
        _check_arguments(path, factory, options, settings)
    network = load_object(path, seed, options)
    if not isinstance(network, nn.Module):
        raise ArgumentTypeError(
            f"{path} must return a torch.nn.Module, got {type(network).__name__}."
        )
    for parameter in network.parameters():
        if _seen_parameters.get(id(parameter)) is parameter:  # would continue the last training
            raise InputError(
                f"{path} returns the same weights at every call; let it make a new model each time."
            )
        _seen_parameters[id(parameter)] = parameter
    if norm != MODEL_NORM:
        network = convert(network, to=norm)
    for scale in norm_scales(network):
        scale.data.fill_(gamma)
    return network


def norm_scales(network: nn.Module) -> list[Tensor]:
    """Scales (gamma) of a network's norm layers, one tensor for each layer that has one."""
    found = (getattr(layer, "weight", None) for layer in norm_layers(network).values())
    return [weight for weight in found if isinstance(weight, Tensor)]


def _check_arguments(
    path: str, factory: Any, options: Mapping[str, Any], settings: Sequence[str]
) -> None:
    """Raise for arguments that a factory needs and lacks, or does not have."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return
    required = [
        name
        for name, each in parameters.items()
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        and name not in options
    ]
    if required and not {*required} & {*settings}:  # a setting's name cannot be an option
        given = " ".join(f"--set {name}=VALUE" for name in required)
        raise InputError(
            f"{path} needs {', '.join(required)}; give {given} (in Python a setting of that name)."
        )
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    choices = {*settings, *parameters} - {CODE}
    for name in options:
        if name not in parameters:
            raise unknown_name("setting or argument", name, choices, f"of {path}")


# Data


@functools.lru_cache(maxsize=4)
def load_custom_data(path: str, version: str) -> Dataset:
    """Load a user's data, once in each process.

    Args:
        path: import path of a function that returns one pair (inputs, targets), of which every
            fifth sample (of a fixed shuffle) is held out for the test; or a pair of such pairs,
            training and test; or a Dataset.
        version: `file_version` of its file; another one is loaded again.

    Raises:
        ArgumentTypeError: if it returns anything else.
    """
    found = load_object(path, seed=0)
    if isinstance(found, Dataset):
        return found
    if _is_pair(found, Tensor):
        train, test = _hold_out(path, Split(*found))
        _samples_before_split[path, version] = len(found[0])
    elif _is_pair(found, (tuple, list)) and all(_is_pair(each, Tensor) for each in found):
        train, test = (Split(*each) for each in found)
    else:
        raise ArgumentTypeError(
            f"{path} must return a pair of tensors (inputs, targets) of all samples, or two such "
            f"pairs (training, test), for a sweep; got {type(found).__name__}."
        )
    for split in (train, test):
        _check_split(path, split)
    labels = not train.y.is_floating_point()
    classes = map(str, range(int(train.y.max()) + 1)) if labels else ()
    return Dataset(path, train, test, tuple(classes))


def describe_held_out(path: str, version: str) -> str:
    """End of a sentence: why there are fewer training samples than the function returned.

    Args:
        path: import path of the function.
        version: of its file.

    Returns:
        An empty string if nothing was held out.
    """
    samples = _samples_before_split.get((path, version))
    if samples is None:
        return ""
    return f"; of the {samples} that {path} returns every fifth is held out for the test"


def _is_pair(found: Any, kind: type | tuple[type, ...]) -> bool:
    return (
        isinstance(found, (tuple, list))
        and len(found) == len(Split._fields)
        and all(isinstance(each, kind) for each in found)
    )


def _check_split(path: str, split: Split) -> None:
    inputs, targets = split
    if not (inputs.dim() and targets.dim() and len(inputs) == len(targets) and len(inputs)):
        raise InputError(
            f"{path} must return as many targets as inputs, and some of each; got shapes "
            f"{tuple(inputs.shape)} and {tuple(targets.shape)}."
        )
    if not targets.is_floating_point() and targets.dim() > 1:
        raise InputError(
            f"{path} must return one integer for each sample as its class, or real numbers to "
            f"learn; got integers of shape {tuple(targets.shape)}."
        )
    for what, values in (("inputs", inputs), ("targets", targets)):
        bad = ~torch.isfinite(values).reshape(len(values), -1).all(1)
        if bad.any():
            raise InputError(
                f"{path} returns {what} that are infinite or not a number, in {int(bad.sum())} of "
                f"{len(values)} samples, the first of them number {int(bad.nonzero()[0])}, counted "
                "from 0; leave such samples out or fill them in."
            )


def _hold_out(path: str, whole: Split) -> tuple[Split, Split]:
    _check_split(path, whole)
    count = len(whole.x)
    if count < _HELD_OUT:
        raise InputError(
            f"{path} must return at least {_HELD_OUT} samples, of which one in {_HELD_OUT} is "
            f"held out for the test; got {count}."
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    is_test = torch.arange(count) % _HELD_OUT == 0
    train, test = order[~is_test], order[is_test]
    return Split(whole.x[train], whole.y[train]), Split(whole.x[test], whole.y[test])
