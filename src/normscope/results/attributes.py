"""Attributes of datasets as strict JSON, and back to the same types and bits.

JSON's own values stand for themselves. What JSON cannot tell apart or hold is an object with a
"type": tuples, mappings, floats that are not finite, and numpy values, which go to the blobs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from normscope.errors import ArgumentTypeError
from normscope.results.identity import plain_text

__all__ = ["decode_attribute", "encode_attribute"]


def encode_attribute(value: Any, arrays: list[np.ndarray], place: str) -> Any:
    """The value as what strict JSON can hold.

    Args:
        value: an attribute's value.
        arrays: numpy values are appended here.
        place: what to call it in an error.

    Raises:
        ArgumentTypeError: if it holds a type that cannot be kept without pickle.
    """
    if isinstance(value, np.generic | np.ndarray):
        arrays.append(np.asarray(value))
        kind = "scalar" if isinstance(value, np.generic) else "array"
        return {"type": kind, "value": len(arrays) - 1}
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"type": "float", "value": repr(value)}
    if isinstance(value, str):
        return plain_text(value, place)
    if type(value) in (list, tuple):
        items = [encode_attribute(item, arrays, place) for item in value]
        return items if type(value) is list else {"type": "tuple", "value": items}
    if type(value) is dict:
        items = [
            [plain_text(name, f"a name in {place}"), encode_attribute(item, arrays, place)]
            for name, item in value.items()
        ]
        return {"type": "mapping", "value": items}
    raise ArgumentTypeError(
        f"{place} is of type {type(value).__name__}, which a store cannot keep; use numbers, "
        "texts, arrays, and lists or dicts of them."
    )


def decode_attribute(value: Any, arrays: list[np.ndarray]) -> Any:
    """What was encoded.

    Args:
        value: from JSON.
        arrays: those of the same dataset.
    """
    if isinstance(value, list):
        return [decode_attribute(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    kind, inner = value["type"], value["value"]
    if kind == "float":
        return float(inner)
    if kind == "scalar":
        return arrays[inner][()]
    if kind == "array":
        return arrays[inner]
    if kind == "tuple":
        return tuple(decode_attribute(item, arrays) for item in inner)
    return {name: decode_attribute(item, arrays) for name, item in inner}
