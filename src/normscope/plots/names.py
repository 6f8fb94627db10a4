"""What normalizations, statements and settings are called in figures, tables and sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["name_of", "said_settings", "statement_name", "with_norm"]

_STATEMENT = re.compile(r"(theorem|fact|lemma)_(\w)_?(\d+)")

_WHOLE = ("samples", "test_samples")  # None: all that there are
_NAMES = {
    "none": "no normalization",
    "batch": "BatchNorm",
    "noisy": "noisy BatchNorm",
    "l1": "l1 norm",
    "l2": "l2 norm",
    "linf": "l-infinity norm",
    "layer": "LayerNorm",
    "group": "GroupNorm",
}


def name_of(norm: str) -> str:
    """The name of a normalization; its key for one that the house does not know.

    >>> name_of("layer")
    'LayerNorm'
    """
    return _NAMES.get(norm, norm)


def with_norm(norm: str) -> str:
    """How a net has it, in words.

    >>> with_norm("none"), with_norm("l1")
    ('without normalization', 'with the l1 norm')
    """
    if norm == "none":
        return "without normalization"
    name = name_of(norm)
    return f"with the {name}" if name.endswith(" norm") else f"with {name}"


def said_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a sweep as a reader takes them: no limit on the samples is all of them.

    >>> said_settings({"samples": None, "epochs": 2, "width": None})
    {'samples': 'all', 'epochs': 2, 'width': None}
    """
    return {
        name: "all" if name in _WHOLE and value is None else value
        for name, value in settings.items()
    }


def statement_name(key: str) -> str:
    """A statement as its paper numbers it.

    >>> statement_name("theorem_4_2 (norm_preserving)"), statement_name("fact_c1")
    ('Theorem 4.2 (norm preserving)', 'Fact C.1')
    """

    def numbered(found: re.Match[str]) -> str:
        return f"{found[1].capitalize()} {found[2].upper()}.{found[3]}"

    return _STATEMENT.sub(numbered, key).replace("_", " ")
