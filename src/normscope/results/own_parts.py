"""The user's own parts of a training, as its record names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["CODE", "record_places"]

CODE = "code"  # the setting that holds the digest of the user's own files; nobody gives it
_PARTS = ("model", "data", "loss")


def record_places(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Where the user's own parts of a training are; empty if all are registered.

    >>> record_places({"model": "my_model.py:build", "data": "digits"})
    ('my_model.py:build',)
    """
    named = (parameters.get(name) for name in _PARTS)
    return tuple(each for each in named if isinstance(each, str) and ":" in each)
