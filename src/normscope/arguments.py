"""Arguments looked at before they are used: each refusal says what was expected and what came."""

from __future__ import annotations

from numbers import Integral, Real

from normscope.errors import ArgumentTypeError

__all__ = ["check_hook", "check_number", "check_switch", "check_whole"]


def check_whole(name: str, value: object) -> None:
    """Refuse what is not a whole number, numpy's included.

    Args:
        name: of the argument.
        value: its value.

    Raises:
        ArgumentTypeError: if it is anything else.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be a whole number, got {value!r}.")


def check_number(name: str, value: object) -> None:
    """Refuse what is not a real number, numpy's included.

    Args:
        name: of the argument.
        value: its value.

    Raises:
        ArgumentTypeError: if it is anything else.
    """
    if not isinstance(value, Real):
        raise ArgumentTypeError(f"{name} must be a number, got {value!r}.")


def check_switch(name: str, value: object) -> None:
    """Refuse what is neither True nor False: a text like "no" would count as true.

    Args:
        name: of the argument.
        value: its value.

    Raises:
        ArgumentTypeError: if it is anything else.

    >>> check_switch("vectors", "no")
    Traceback (most recent call last):
        ...
    normscope.errors.ArgumentTypeError: vectors must be True or False, got 'no'.
    """
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be True or False, got {value!r}.")


def check_hook(name: str, value: object) -> None:
    """Refuse what cannot be called and is not None.

    Args:
        name: of the argument.
        value: its value.

    Raises:
        ArgumentTypeError: if it is anything else.

    >>> check_hook("progress", True)
    Traceback (most recent call last):
        ...
    normscope.errors.ArgumentTypeError: progress must be a function or None, got True.
    """
    if not (value is None or callable(value)):
        raise ArgumentTypeError(f"{name} must be a function or None, got {value!r}.")
