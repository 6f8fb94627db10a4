"""Checks of argument types; each error names what was expected and what came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import TypeVar, cast

from normscope.errors import ArgumentTypeError

__all__ = ["as_tuple", "check_bool", "check_callback", "check_integer", "check_number"]

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
