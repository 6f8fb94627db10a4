"""Results of many cells as one labelled dataset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import InputError
from normscope.results.content import Content, Piece, Pieces, assemble, encode
from normscope.results.filling import fillable
from normscope.results.identity import canonical_json
from normscope.results.labels import (
    constant_settings,
    positions_in,
    setting_labels,
    union,
    varying_settings,
)

__all__ = ["Cell", "combine"]

_NUMBERS = "biufc"


@dataclass(frozen=True)
class Cell:
    """One result and the settings it belongs to."""

    parameters: dict[str, Any]
    seed: int
    pieces: Pieces


@dataclass(frozen=True)
class Placed:
    """The variables of one cell and where they go: in the grid, and along each inner dimension."""

    variables: dict[str, Piece]
    position: tuple[int, ...]
    along: dict[str, slice | np.ndarray]


def combine(experiment: str, cells: Sequence[Cell]) -> xr.Dataset:
    """The cells as one dataset: a dimension for each parameter that varies and for the seed.

    Args:
        experiment: its name, kept as an attribute.
        cells: at least one; of two with the same labels the later one counts.
    """
    settings = [{**cell.parameters, "seed": cell.seed} for cell in cells]
    axes = [name for name in varying_settings(settings) if name != "seed"] + ["seed"]
    labelled = {name: setting_labels([each.get(name) for each in settings]) for name in axes}
    places = zip(*(positions for _, positions in labelled.values()), strict=True)
    chosen = dict(zip(places, (cell.pieces for cell in cells), strict=True))  # the later one counts
    parts = {place: _without_axes(pieces.variables, axes) for place, pieces in chosen.items()}
    inner, sizes = _inner_labels(list(parts.values()))
    placed = [Placed(part, place, _along(part, inner)) for place, part in parts.items()]
    grid = {name: labels for name, (labels, _) in labelled.items()}
    variables = {name: Piece((name,), labels, {}, True) for name, labels in grid.items()}
    shape = tuple(map(len, grid.values()))
    for name in dict.fromkeys(name for part in parts.values() for name in part):
        if name in inner:
            first = next(part[name] for part in parts.values() if name in part)
            variables[name] = replace(first, values=inner[name])
        else:
            variables[name] = _gridded(name, placed, tuple(grid), shape, sizes)
    constants = {
        name: value for name, value in constant_settings(settings).items() if name != "seed"
    }
    attributes = _common([pieces.attributes for pieces in chosen.values()])
    attributes |= {"experiment": experiment, "parameters": canonical_json(constants)}
    return assemble(Pieces(variables, attributes))


def _without_axes(variables: dict[str, Piece], axes: Sequence[str]) -> dict[str, Piece]:
    """A cell's variables without what the grid's labels say already, such as its own seed."""
    found = {}
    for name, piece in variables.items():
        values, dims = piece.values, piece.dims
        for axis in set(axes) & set(dims):
            if values.shape[dims.index(axis)] != 1:
                raise InputError(
                    f"variable {name!r} has a dimension {axis!r} of its own, which also varies "
                    "between the records; rename one of them."
                )
            values = values.squeeze(dims.index(axis))
            dims = tuple(dim for dim in dims if dim != axis)
        if name not in axes:
            found[name] = replace(piece, dims=dims, values=values)
        elif not piece.is_coordinate or dims:
            raise InputError(
                f"the results have a variable {name!r}, which is also the name of a setting that "
                "varies between the records; rename one of them."
            )
    return found


def _inner_labels(
    parts: Sequence[dict[str, Piece]],
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """All labels of each dimension that has some, and the size of each dimension."""
    found: dict[str, list[np.ndarray]] = {}
    sizes: dict[str, int] = {}
    bare: set[str] = set()
    for part in parts:
        dims = {
            dim: size
            for piece in part.values()
            for dim, size in zip(piece.dims, piece.values.shape, strict=True)
        }
        for dim, size in dims.items():
            sizes[dim] = max(size, sizes.get(dim, 0))
            if dim in part:
                found.setdefault(dim, []).append(part[dim].values)
            else:
                bare.add(dim)
    if mixed := sorted(bare & set(found)):
        raise InputError(
            f"some records have labels along {mixed[0]!r} and some have none; give all of them "
            "labels."
        )
    unions = {dim: union(dim, labels) for dim, labels in found.items()}
    return unions, sizes | {dim: len(labels) for dim, labels in unions.items()}


def _along(part: dict[str, Piece], inner: dict[str, np.ndarray]) -> dict[str, slice | np.ndarray]:
    return {dim: positions_in(inner[dim], part[dim].values) for dim in inner if dim in part}


def _gridded(
    name: str,
    placed: Sequence[Placed],
    axes: tuple[str, ...],
    shape: tuple[int, ...],
    sizes: dict[str, int],
) -> Piece:
    """One variable over the whole grid; a coordinate that is the same everywhere stays as it is."""
    present = [cell for cell in placed if name in cell.variables]
    first = present[0].variables[name]
    whole = tuple(sizes[dim] for dim in first.dims)
    pieces = [_transposed(name, cell.variables[name], first.dims) for cell in present]
    full = all(piece.values.shape == whole for piece in pieces)
    if first.is_coordinate and full and len(present) == len(placed) and _equal_bits(pieces):
        return first
    dtype = _common_dtype(name, pieces)
    hole: Any = None
    if not full or len(present) < math.prod(shape):
        dtype, hole = fillable(dtype)
    values = np.empty(shape + whole, dtype) if hole is None else np.full(shape + whole, hole, dtype)
    for cell, piece in zip(present, pieces, strict=True):
        place: tuple[Any, ...] = (*cell.position, ...)  # a view also where one value is left
        _put(values[place], piece, cell.along)
    return Piece(axes + first.dims, values, first.attributes, first.is_coordinate)


def _put(target: np.ndarray, piece: Piece, along: dict[str, slice | np.ndarray]) -> None:
    sizes = zip(piece.dims, piece.values.shape, strict=True)
    where = [along.get(dim, slice(0, size)) for dim, size in sizes]
    if all(isinstance(each, slice) for each in where):
        target[tuple(where)] = piece.values
        return
    ranges = (np.arange(size)[each] for each, size in zip(where, target.shape, strict=True))
    target[np.ix_(*ranges)] = piece.values


def _transposed(name: str, piece: Piece, dims: tuple[str, ...]) -> Piece:
    if piece.dims == dims:
        return piece
    if set(piece.dims) != set(dims):
        raise InputError(
            f"variable {name!r} has the dimensions {list(dims)} in one record and "
            f"{list(piece.dims)} in another; select the records that belong together."
        )
    order = [piece.dims.index(dim) for dim in dims]
    return replace(piece, dims=dims, values=piece.values.transpose(order))


def _common_dtype(name: str, pieces: Sequence[Piece]) -> np.dtype:
    dtypes = {piece.values.dtype for piece in pieces}
    kinds = {"number" if dtype.kind in _NUMBERS else dtype.kind for dtype in dtypes}
    if len(kinds) > 1:
        raise InputError(
            f"variable {name!r} has the dtypes {', '.join(sorted(map(str, dtypes)))} in different "
            "records, which nothing holds together; convert it before storing."
        )
    return np.result_type(*dtypes) if len(dtypes) > 1 else next(iter(dtypes))


def _equal_bits(pieces: Sequence[Piece]) -> bool:
    first = pieces[0].values
    bits = first.tobytes()
    return all(
        piece.values.dtype == first.dtype and piece.values.tobytes() == bits for piece in pieces[1:]
    )


def _common(attributes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The attributes that are the same in all cells."""
    first = attributes[0]
    return {
        name: value
        for name, value in first.items()
        if all(name in each and _kept(each[name]) == _kept(value) for each in attributes[1:])
    }


def _kept(value: Any) -> Content:
    return encode(Pieces({}, {"value": value}))
