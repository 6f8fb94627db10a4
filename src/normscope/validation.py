"""Checks of argument types; each error names what was expected and what came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import TypeVar, cast

from normscope.errors import ArgumentTypeError, InputError

__all__ = ["as_seed", "as_tuple", "check_bool", "check_callback", "check_integer", "check_number"]

T = TypeVar("T")


def as_tuple(name: str, values: Iterable[T]) -> tuple[T, ...]:
    """Return the values as a tuple; raise `ArgumentTypeError` unless they are a list or alike.

    >>> as_tuple("warmups", 5)
    Traceback (most recent call last):
        ...
    normscope.errors.ArgumentTypeError: warmups must be a list of numbers, got 5.
    """
    given = cast("object", values)
    is_row = isinstance(given, Iterable) and getattr(given, "ndim", 1) == 1
    if not is_row or isinstance(given, str | bytes | Mapping):
        raise ArgumentTypeError(f"{name} must be a list of numbers, got {values!r}.")
    return tuple(values)


def as_seed(seed: object) -> int:
    """Return a seed as `torch.Generator.manual_seed` takes it, below ``2**63``.

    All generators of torch take seeds modulo ``2**64``. The upper half is returned as the negative
    number that gives the same draws, so that ``seed + 1`` is a seed too.

    Raises:
        ArgumentTypeError: unless it is an integer, numpy's included.
        InputError: if it is out of the range.

    >>> as_seed(7), as_seed(2**64 - 1)
    (7, -1)
    >>> as_seed(2**64)
    Traceback (most recent call last):
        ...
    normscope.errors.InputError: seed must be from -2**63 to 2**64 - 1, got 18446744073709551616.
    """
    check_integer("seed", seed)
    number = int(cast("int", seed))
    if not -(2**63) <= number < 2**64:
        raise InputError(f"seed must be from -2**63 to 2**64 - 1, got {number}.")
    return number if number < 2**63 else number - 2**64


def check_integer(name: str, value: object) -> None:
    """Raise `ArgumentTypeError` unless the value is an integer, numpy's included.

    >>> check_integer("seed", 0.5)
    Traceback (most recent call last):
        ...
    normscope.errors.ArgumentTypeError: seed must be an integer, got 0.5.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be an integer, got {value!r}.")


def check_number(name: str, value: object) -> None:
    """Raise `ArgumentTypeError` unless the value is a real number, numpy's included."""
    if not isinstance(value, Real):
        raise ArgumentTypeError(f"{name} must be a number, got {value!r}.")


def check_bool(name: str, value: object) -> None:
    """Raise `ArgumentTypeError` unless the value is a bool: a string like "no" would be true."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be True or False, got {value!r}.")


def check_callback(name: str, value: object) -> None:
    """Raise `ArgumentTypeError` unless the value is callable or None.

    >>> check_callback("progress", True)
    Traceback (most recent call last):
        ...
    normscope.errors.ArgumentTypeError: progress must be a function or None, got True.
    """
    if not (value is None or callable(value)):
        raise ArgumentTypeError(f"{name} must be a function or None, got {value!r}.")
