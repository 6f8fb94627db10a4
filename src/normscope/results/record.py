"""What a record of the store is: its identity and key, its state, and its result.

Two records are the same if experiment, parameters, seed, revision and version are. The key is the
SHA-256 of their canonical JSON: sorted names, no spaces, floats by their shortest exact text. A
reader recomputes it to check that a row is intact.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import xarray as xr

from normscope import __version__
from normscope.errors import ArgumentTypeError, InputError
from normscope.registry import check_choice
from normscope.text import Table

CODE = "code"  # parameter with the digest of the user's files; set by the sweep, never by a user
_CUSTOM_PARTS = ("model", "data", "loss")  # parameters that may be import paths
_RESERVED = ("experiment", "state", "seed")  # arguments of Store.select
_LARGEST = 2**63 - 1  # of an integer in SQLite
DEEPEST = 100  # levels of lists and dicts in parameters and attributes


class State(StrEnum):
    """State of a record.

    >>> State("finished").has_result, State.RUNNING.has_result
    (True, False)
    """

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    DIVERGED = "diverged"
    FAILED = "failed"

    @classmethod
    def named(cls, name: str) -> State:
        """Return the state of this name.

        Raises:
            UnknownNameError: if there is none.
        """
        check_choice("state", name, [str(each) for each in cls])
        return cls(name)

    @property
    def has_result(self) -> bool:
        """Whether the whole result is stored; divergence is a result too."""
        return self in (State.FINISHED, State.DIVERGED)


@dataclass(frozen=True, eq=False)
class Record:
    """One record as it was when it was read.

    Args:
        key: the hash of the next five.
        experiment: its name.
        parameters: as JSON values: tuples have become lists, paths strings.
        seed: of its random numbers.
        revision: of the experiment's code.
        version: of the package.
        state: of the computation.
        attempts: number of starts.
        error: the message of the failure, if it failed.
        seconds: duration of the attempt that finished or failed.
        read: returns the dataset.
    """

    key: str
    experiment: str
    parameters: dict[str, Any]
    seed: int
    revision: int
    version: str
    state: State
    attempts: int
    error: str | None
    seconds: float | None
    read: Callable[[], xr.Dataset] = field(repr=False)

    @cached_property
    def dataset(self) -> xr.Dataset:
        """The result, read on first access; for a running record, the chunks so far."""
        return self.read()

    def _repr_html_(self) -> str:
        names = ("seed", "state", "attempts", "error", "seconds", "revision", "version")
        values = {name: getattr(self, name) for name in names}
        title = f"{self.experiment}, {self.key[:12]}"
        return Table({**self.parameters, **values}, title).html()


@dataclass(frozen=True)
class Identity:
    """The five values that identify a record, its parameters as canonical JSON."""

    experiment: str
    parameters: str
    seed: int
    revision: int
    version: str

    @classmethod
    def of(
        cls,
        experiment: str,
        parameters: Mapping[str, Any],
        seed: int,
        revision: int,
        version: str = __version__,
    ) -> Identity:
        """Return the identity of these arguments, checked and normalized.

        Raises:
            ArgumentTypeError: if an argument has the wrong type.
            InputError: if a parameter has a reserved name.
        """
        if not isinstance(parameters, Mapping):
            raise ArgumentTypeError(
                f"parameters must be a dict of names and values, got {type(parameters).__name__}."
            )
        for name in _RESERVED:
            if name in parameters:
                raise InputError(
                    f"a parameter cannot be called {name!r}, which is a field of every record; "
                    "pass it as the argument of that name or choose another name."
                )
        return cls(
            check_string(experiment, "experiment"),
            canonical_json(parameters, "parameters"),
            _check_int64(seed, "seed"),
            _check_int64(revision, "revision"),
            check_string(version, "version"),
        )

    @property
    def key(self) -> str:
        """The hash by which the record is found."""
        # canonical JSON by hand, since the parameters are canonical already: names in order
        text = (
            f'{{"experiment":{_quote(self.experiment)},"parameters":{self.parameters},'
            f'"revision":{self.revision},"seed":{self.seed},"version":{_quote(self.version)}}}'
        )
        return hashlib.sha256(text.encode()).hexdigest()


_quote = lru_cache(maxsize=64)(json.dumps)  # of names that most records of a store share


def record_key(
    experiment: str,
    parameters: Mapping[str, Any],
    seed: int,
    revision: int = 1,
    version: str = __version__,
) -> str:
    """Key of a record: a hash of everything that its result depends on.

    Args:
        experiment: its name.
        parameters: by name; None, bool, int, float, str, Path, numpy scalars and arrays, and lists,
            tuples and dicts of these. A tuple equals a list, a Path its string, a numpy number
            Python's; 1 and 1.0 are different parameters.
        seed: of its random numbers.
        revision: of the experiment's own code.
        version: of the package.

    Returns:
        64 hexadecimal digits.

    Examples:
        >>> key = record_key("ols", {"gamma": 1.0, "steps": 10}, seed=0)
        >>> key == record_key("ols", {"steps": 10, "gamma": 1.0}, seed=0)
        True
        >>> key == record_key("ols", {"steps": 10, "gamma": 1.0}, seed=1)
        False
    """
    return Identity.of(experiment, parameters, seed, revision, version).key


def matches(parameters: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether the parameters have the wanted values; 1 equals 1.0 but not True.

    >>> matches({"gamma": 1.0, "norm": "batch"}, {"gamma": 1})
    True
    """
    return all(
        name in parameters
        and parameters[name] == value
        and isinstance(parameters[name], bool) == isinstance(value, bool)
        for name, value in wanted.items()
    )


def custom_parts(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Import paths of a training's user-defined model, data and loss.

    >>> custom_parts({"model": "my_model.py:build", "data": "digits"})
    ('my_model.py:build',)
    """
    named = (parameters.get(name) for name in _CUSTOM_PARTS)
    return tuple(each for each in named if isinstance(each, str) and ":" in each)


def training_settings(dataset: xr.Dataset) -> dict[str, Any]:
    """Settings in a dataset's attribute ``settings`` (JSON); empty if it holds anything else.

    >>> training_settings(xr.Dataset(attrs={"settings": '{"momentum": 0.9}'}))
    {'momentum': 0.9}
    """
    try:
        found = json.loads(dataset.attrs.get("settings", "{}"))
    except (TypeError, ValueError):  # a file from elsewhere may hold anything by that name
        return {}
    return found if isinstance(found, dict) else {}


def canonical_json(value: Any, label: str = "value") -> str:
    """Return the one JSON text of a value.

    >>> canonical_json({"b": (1, 2.5), "a": None})
    '{"a":null,"b":[1,2.5]}'
    """
    return dump_json(json_value(value, label), label, sort_keys=True)


def dump_json(value: Any, label: str, *, sort_keys: bool = False) -> str:
    """Return the strict JSON of a value of JSON types, without spaces.

    Args:
        value: to write.
        label: its name in errors.
        sort_keys: whether the names of dicts are sorted.

    Raises:
        InputError: if it holds an integer of thousands of digits.
    """
    try:
        return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), allow_nan=False)
    except ValueError as error:  # Python limits the digits of integers
        raise InputError(
            f"{label} cannot be written as JSON ({error}); use numbers of fewer digits."
        ) from error


def json_value(value: Any, label: str = "value", levels: int = DEEPEST) -> Any:
    """Convert a value to None, bool, int, float, str, list or dict.

    Args:
        value: to convert.
        label: its name in errors.
        levels: of lists and dicts that may be nested.

    Raises:
        ArgumentTypeError: if it holds a type without exact JSON.
        InputError: if it holds NaN or infinity, or is nested too deeply.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = _python_value(value, label)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | os.PathLike):
        return check_string(os.fspath(value), label)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(
                f"{label} is {value}, which JSON cannot hold; use a finite number or None."
            )
        return float(value)
    if isinstance(value, list | tuple | Mapping) and not levels:
        raise nesting_error(label)
    if isinstance(value, list | tuple):
        return [
            json_value(item, f"{label}[{index}]", levels - 1) for index, item in enumerate(value)
        ]
    if isinstance(value, Mapping):
        return {
            check_string(name, f"a name in {label}"): json_value(
                item, f"{label}[{name!r}]", levels - 1
            )
            for name, item in value.items()
        }
    raise ArgumentTypeError(
        f"{label} is of type {type(value).__name__}, which cannot be part of a key; use numbers, "
        "strings, and lists or dicts of them."
    )


def nesting_error(label: str) -> InputError:
    """Error for lists and dicts that are nested so deeply that a reader could not follow them."""
    return InputError(
        f"{label:.40} has lists or dicts nested more than {DEEPEST} deep; use fewer levels."
    )


def check_string(value: Any, label: str) -> str:
    """Return the value as a plain str.

    Raises:
        ArgumentTypeError: if it is not a string.
        InputError: if it cannot be written as UTF-8.
    """
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{label} must be a str, got {type(value).__name__}.")
    text = str.__str__(value)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"{label} is {text!r}, which is not valid Unicode; use another string.")
    return text


def _python_value(value: np.generic | np.ndarray, label: str) -> Any:
    too_long = value.dtype.kind == "f" and value.dtype.itemsize > 8
    if value.dtype.kind not in "biufU" or too_long:
        raise ArgumentTypeError(
            f"{label} has the dtype {value.dtype}, which has no exact JSON; use bool, integers, "
            "floats up to 64 bits, or strings."
        )
    return value.tolist()


def _check_int64(value: Any, label: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentTypeError(f"{label} must be an int, got {type(value).__name__}.")
    if not -_LARGEST - 1 <= value <= _LARGEST:
        raise InputError(f"{label} must fit 64 bits with a sign, got {value}.")
    return int(value)
