"""Values of options: ``name=value``, lists ``a,b,c``, ranges ``0.1:3:12`` and ``1e-3:1:16:log``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from normscope.errors import InputError
from normscope.ranges import RANGE, number_range


def named_values(texts: Iterable[str]) -> dict[str, Any]:
    """Return values by name, each a Python literal or else a string; of a name the last one.

    >>> named_values(["width=100", "data=mnist"])
    {'width': 100, 'data': 'mnist'}

    Raises:
        InputError: if there is no name or no equals sign.
    """
    return {name: _literal(value) for name, value in map(_halves, texts)}


def named_lists(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Return names, each with one value or several.

    >>> named_lists(["gamma=0.5:1.5:3", "data=mnist", "norm=batch,none"])
    {'gamma': [0.5, 1.0, 1.5], 'data': ['mnist'], 'norm': ['batch', 'none']}

    Args:
        texts: each ``name=values``; the last of a name that is given twice counts.
    """
    return {name: value_list(values) for name, values in map(_halves, texts)}


def value_list(text: str) -> list[Any]:
    """Return one value, several with commas, or a range; brackets enclose one value.

    >>> value_list("1e-2:1:3:log"), value_list("batch,none"), value_list("(1, 8, 8)")
    ([0.01, 0.1, 1.0], ['batch', 'none'], [(1, 8, 8)])
    """
    if text[:1] in ("(", "[", "{"):
        parsed = _literal(text)
        # "(1,2),(3,4)" evaluates to a tuple of its parts, "(1, 2)" to itself
        several = isinstance(parsed, tuple) and _literal(f"[{text}]") == list(parsed)
        return list(parsed) if several else [parsed]
    if "," in text:
        return [_literal(part) for part in text.split(",") if part]
    if ":" in text and all(_is_number(part) for part in text.split(":")[:2]):
        return number_range(text)
    return [_literal(text)]


def numbers(text: str, name: str) -> float | list[float]:
    """Return a number, or a list of them: with commas, or as a range.

    >>> numbers("2", "gamma"), numbers("1,2", "gamma")
    (2.0, [1.0, 2.0])

    Args:
        text: what was given.
        name: of the option, for the error.

    Raises:
        InputError: if it is none of these.
    """
    if ":" in text:
        return number_range(text)
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(
            f"{name} must be a number, numbers with commas, {RANGE}, got {text!r}."
        ) from error
    return found[0] if len(found) == 1 else found


def _halves(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise InputError(f"an option is name=value, got {text!r}.")
    return name, value


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
