"""What a record is: experiment, parameters, seed, revision, version; and the key made of them.

Two records are the same if these five are. The key is the hash of their canonical JSON: sorted
names, no spaces, floats by their shortest exact text. It depends on no order and on no process, and
it lets a reader check that what it found belongs together.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from normscope import __version__
from normscope.errors import ArgumentTypeError, InputError

__all__ = ["Identity", "canonical_json", "plain", "plain_text", "record_key"]

_RESERVED = ("experiment", "state", "seed")  # arguments of Store.select; seed is a label of its own
_LARGEST = 2**63 - 1  # of an integer in SQLite


@dataclass(frozen=True)
class Identity:
    """The five things that make a record, its parameters as canonical JSON."""

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
        """An identity of what a caller gave, checked and normalized.

        Raises:
            ArgumentTypeError: if an argument has the wrong type.
        """
        if not isinstance(parameters, Mapping):
            raise ArgumentTypeError(
                f"parameters must be a dict of names and values, got {type(parameters).__name__}."
            )
        _refuse_reserved(parameters)
        return cls(
            plain_text(experiment, "experiment"),
            canonical_json(parameters, "parameters"),
            _whole(seed, "seed"),
            _whole(revision, "revision"),
            plain_text(version, "version"),
        )

    @property
    def key(self) -> str:
        """The hash by which the record is found."""
        # canonical JSON by hand, since the parameters are canonical already: names in order
        text = (
            f'{{"experiment":{json.dumps(self.experiment)},"parameters":{self.parameters},'
            f'"revision":{self.revision},"seed":{self.seed},"version":{json.dumps(self.version)}}}'
        )
        return hashlib.sha256(text.encode()).hexdigest()


def record_key(
    experiment: str,
    parameters: Mapping[str, Any],
    seed: int,
    revision: int = 1,
    version: str = __version__,
) -> str:
    """The key of a record: a hash of everything that its result depends on.

    Args:
        experiment: its name.
        parameters: by name; None, bool, int, float, str, Path, numpy scalars and arrays, and lists,
            tuples and dicts of these. A tuple is the same as a list, a Path as its text, a numpy
            number as Python's; 1 and 1.0 are two parameters.
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


def canonical_json(value: Any, place: str = "value") -> str:
    """The one JSON text of a value.

    >>> canonical_json({"b": (1, 2.5), "a": None})
    '{"a":null,"b":[1,2.5]}'
    """
    return json.dumps(plain(value, place), sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain(value: Any, place: str = "value") -> Any:
    """The value as JSON's own types.

    Args:
        value: what to normalize.
        place: what to call it in an error.

    Returns:
        None, bool, int, float, str, list or dict.

    Raises:
        ArgumentTypeError: if it holds anything else.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = _numpy_as_python(value, place)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return plain_text(value, place)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _finite(float(value), place)
    if isinstance(value, os.PathLike):
        return plain_text(os.fspath(value), place)
    if isinstance(value, list | tuple):
        return [plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {
            _name(name, place): plain(item, f"{place}[{name!r}]") for name, item in value.items()
        }
    raise ArgumentTypeError(
        f"{place} is of type {type(value).__name__}, which has no place in a key; use numbers, "
        "texts, and lists or dicts of them."
    )


def plain_text(value: Any, place: str) -> str:
    """The value as a plain str.

    Raises:
        ArgumentTypeError: if it is no text.
        InputError: if it cannot be written as UTF-8.
    """
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{place} must be a str, got {type(value).__name__}.")
    text = str.__str__(value)
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError(f"{place} is {text!r}, which is not valid Unicode; use another text.")
    return text


def _numpy_as_python(value: np.generic | np.ndarray, place: str) -> Any:
    too_long = value.dtype.kind == "f" and value.dtype.itemsize > 8
    if value.dtype.kind not in "biufU" or too_long:
        raise ArgumentTypeError(
            f"{place} has the dtype {value.dtype}, which has no exact JSON; use bool, integers, "
            "floats up to 64 bits, or texts."
        )
    return value.tolist()


def _finite(value: float, place: str) -> float:
    if not math.isfinite(value):
        raise InputError(
            f"{place} is {value}, which JSON cannot hold; use a finite number or None."
        )
    return value


def _name(name: Any, place: str) -> str:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{place} has the name {name!r}; names must be of type str.")
    return plain_text(name, f"a name in {place}")


def _refuse_reserved(parameters: Mapping[str, Any]) -> None:
    for name in _RESERVED:
        if name in parameters:
            raise InputError(
                f"a parameter cannot be called {name!r}, since a record has that of its own; pass "
                "it as the argument of that name or choose another."
            )


def _whole(value: Any, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentTypeError(f"{place} must be an int, got {type(value).__name__}.")
    if not -_LARGEST <= value <= _LARGEST:
        raise InputError(f"{place} must fit 64 bits with a sign, got {value}.")
    return int(value)
