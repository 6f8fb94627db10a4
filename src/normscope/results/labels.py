"""Labels: of the settings that vary between cells, and of the dimensions within them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from normscope.errors import InputError
from normscope.results.identity import canonical_json

__all__ = ["constant_settings", "positions_in", "setting_labels", "union", "varying_settings"]

_LARGEST = 2**63 - 1  # of numpy's int64


def varying_settings(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The names whose values are not the same everywhere; a value left out counts as null."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({_identity(each.get(name)) for each in settings}) > 1]


def constant_settings(settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The values that are the same everywhere."""
    varying = varying_settings(settings)
    return {name: value for name, value in settings[0].items() if name not in varying}


def setting_labels(values: Sequence[Any]) -> tuple[np.ndarray, list[int]]:
    """The different values as an array, and the position of each value in it.

    >>> labels, positions = setting_labels([0.5, 0.1, 0.5])
    >>> labels.tolist(), positions
    ([0.1, 0.5], [1, 0, 1])
    """
    numeric = all(map(_is_number, values))
    if not numeric and not _all_of(values, str) and not _all_of(values, bool):
        values = [canonical_json(value) for value in values]
    different = list(dict.fromkeys(values))
    if numeric:
        different.sort()
    position = {value: index for index, value in enumerate(different)}
    return np.array(different), [position[value] for value in values]


def union(dim: str, labels: Sequence[np.ndarray]) -> np.ndarray:
    """All labels that occur along a dimension.

    They stay as they are if equal everywhere; else numbers are in ascending order, texts in the
    order of their appearance.

    Raises:
        InputError: if labels repeat, so that nothing says what belongs together.
    """
    first = labels[0]
    if all(each is first or _same_bits(each, first) for each in labels):
        return first
    distinct = list({(each.dtype.str, each.tobytes()): each for each in labels}.values())
    if any(len(np.unique(each)) < len(each) for each in distinct):
        raise InputError(
            f"the records have different labels along {dim!r} and some repeat; give each its own."
        )
    everything = np.concatenate(distinct)
    found, where = np.unique(everything, return_index=True)
    return everything[np.sort(where)] if everything.dtype.kind in "US" else found


def positions_in(everything: np.ndarray, labels: np.ndarray) -> slice | np.ndarray:
    """Where the labels are among all; a slice if they are the first ones."""
    if len(labels) <= len(everything) and np.array_equal(everything[: len(labels)], labels):
        return slice(0, len(labels))
    order = np.argsort(everything)
    found: np.ndarray = order[np.searchsorted(everything, labels, sorter=order)]
    return found


def _identity(value: Any) -> Any:
    return value if _is_number(value) else canonical_json(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or -_LARGEST <= value <= _LARGEST


def _all_of(values: Sequence[Any], kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )
