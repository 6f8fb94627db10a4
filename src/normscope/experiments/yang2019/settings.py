"""Settings of the experiments, refused before anything is measured if they cannot be used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from normscope.errors import InputError
from normscope.registry import unknown_name

__all__ = ["known_names", "positive_numbers", "whole_number", "whole_numbers"]


def whole_number(name: str, value: Any, at_least: int) -> int:
    """A setting that counts something.

    Args:
        name: of the setting.
        value: given.
        at_least: the least that makes sense.

    Returns:
        The number.

    Raises:
        InputError: if it is no whole number, or too small.

    >>> whole_number("depth", 8, at_least=4)
    8
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
        raise InputError(f"{name} must be a whole number from {at_least} on, got {value!r}.")
    return int(value)


def whole_numbers(name: str, values: Sequence[Any], at_least: int) -> tuple[int, ...]:
    """Several of them, different ones, in increasing order.

    Args:
        name: of the setting.
        values: given, at least one.
        at_least: the least that makes sense.

    Returns:
        The numbers.

    >>> whole_numbers("depths", [20, 10], at_least=2)
    (10, 20)
    """
    _check_distinct(name, values)
    return tuple(sorted(whole_number(f"each of {name}", value, at_least) for value in values))


def positive_numbers(name: str, values: Sequence[Any]) -> tuple[float, ...]:
    """Several numbers above zero, different ones, in increasing order.

    Args:
        name: of the setting.
        values: given, at least one.

    Returns:
        The numbers.

    Raises:
        InputError: if one of them is no number, or not above zero.
    """
    _check_distinct(name, values)
    for value in values:
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise InputError(f"each of {name} must be a number above zero, got {value!r}.")
    return tuple(sorted(float(value) for value in values))


def known_names(name: str, values: Sequence[Any], known: Sequence[str]) -> tuple[str, ...]:
    """Several names, different ones, in the order given.

    Args:
        name: of the setting.
        values: given, at least one.
        known: those there are.

    Returns:
        The names.

    Raises:
        UnknownNameError: if there is none of a name.
    """
    _check_distinct(name, values)
    for value in values:
        if value not in known:
            raise unknown_name(f"one of {name}", str(value), known)
    return tuple(values)


def _check_distinct(name: str, values: Sequence[Any]) -> None:
    if not len(values):
        raise InputError(f"{name} must name at least one, got none.")
    try:
        repeated = len(set(values)) < len(values)
    except TypeError:  # lists in the list
        repeated = True
    if repeated:
        raise InputError(f"{name} must be different values, got {list(values)}.")
