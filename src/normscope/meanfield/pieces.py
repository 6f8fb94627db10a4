"""A long sweep in pieces, so that kernels of resolved maps fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from normscope.meanfield.fisher import Estimate
from normscope.meanfield.gaussian_integrals import Array
from normscope.meanfield.layer_row import LayerRow

__all__ = ["in_pieces"]

T = TypeVar("T", Estimate, LayerRow)


def in_pieces(
    run: Callable[[Array | None], Estimate], values: Array | None, size: int | None
) -> Estimate:
    """An estimate over a sweep, some values at a time.

    Args:
        run: makes the estimate of some values.
        values: of the sweep; None without one.
        size: values at a time; None for all at once.

    Returns:
        The estimate over all values.
    """
    if values is None or size is None or len(values) <= size:
        return run(values)
    pieces = [values[begin : begin + size] for begin in range(0, len(values), size)]
    lengths = [len(piece) for piece in pieces]
    parts = [run(piece) for piece in pieces]
    rows = zip(*(part.layers for part in parts), strict=True)
    layers = tuple(_joined(each, lengths) for each in rows)
    return replace(_joined(parts, lengths), layers=layers)


def _joined(parts: Sequence[T], lengths: Sequence[int]) -> T:
    """The first part with every array that it holds continued by those of the others."""
    arrays: dict[str, Any] = {}
    for each in fields(parts[0]):
        values = [getattr(part, each.name) for part in parts]
        if isinstance(values[0], np.ndarray):
            whole = [np.broadcast_to(v, (n,)) for v, n in zip(values, lengths, strict=True)]
            arrays[each.name] = np.concatenate(whole)
    return replace(parts[0], **arrays)
