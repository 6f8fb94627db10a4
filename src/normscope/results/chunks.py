"""Chunks of steps: which fit one another, and what they are together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normscope.errors import InputError
from normscope.results.content import Piece, Pieces
from normscope.results.filling import fillable

__all__ = ["Form", "fitting_forms", "join"]

STEP = "step"


@dataclass(frozen=True)
class Form:
    """What a variable must have in common in all chunks."""

    dims: tuple[str, ...]
    sizes: tuple[int, ...]  # 0 stands for the steps
    dtype: str
    is_coordinate: bool
    values: bytes | None  # of a variable without steps, which must stay as it is

    @classmethod
    def of(cls, piece: Piece) -> Form:
        """The form of one variable."""
        sizes = zip(piece.dims, piece.values.shape, strict=True)
        dtype = piece.values.dtype
        return cls(
            piece.dims,
            tuple(0 if dim == STEP else size for dim, size in sizes),
            dtype.kind if dtype.kind in "US" else dtype.str,  # texts may be of any length
            piece.is_coordinate,
            None if STEP in piece.dims else repr(piece.values.tolist()).encode(),
        )


def fitting_forms(known: dict[str, Form], pieces: Pieces) -> dict[str, Form]:
    """The forms of the variables so far with those of one more chunk.

    A chunk may leave variables out or bring new ones; what it shares must be of the same form.

    Raises:
        InputError: if the chunk has no steps, or does not fit.
    """
    if not any(STEP in piece.dims for piece in pieces.variables.values()):
        raise InputError(
            f"a chunk needs a variable with the dimension 'step', got {list(pieces.variables)}; "
            "use .expand_dims(step=[...])."
        )
    added = {name: Form.of(piece) for name, piece in pieces.variables.items()}
    for name, form in added.items():
        if known.get(name, form) != form:
            raise InputError(
                f"variable {name!r} does not fit the chunks before it: {_told(known[name])} there, "
                f"{_told(form)} here; give every chunk the same variables."
            )
    return known | added


def join(chunks: Sequence[Pieces]) -> Pieces:
    """The chunks one after another along "step".

    A variable that some chunks leave out has holes there. Attributes of a variable are those of
    its first chunk; of the dataset's attributes, the last chunk to name one wins.
    """
    if len(chunks) == 1:
        return chunks[0]
    names = {name: None for chunk in chunks for name in chunk.variables}  # in order
    lengths = [_steps(chunk) for chunk in chunks]
    variables = {
        name: _joined([chunk.variables.get(name) for chunk in chunks], lengths) for name in names
    }
    attributes: dict[str, Any] = {}
    for chunk in chunks:
        attributes |= chunk.attributes
    return Pieces(variables, attributes)


def _joined(parts: Sequence[Piece | None], lengths: Sequence[int]) -> Piece:
    present = [part for part in parts if part is not None]
    first = present[0]
    if STEP not in first.dims:
        return first
    axis = first.dims.index(STEP)
    shape = list(first.values.shape)
    shape[axis] = sum(lengths)
    dtype = max((part.values.dtype for part in present), key=lambda each: each.itemsize)
    if len(present) == len(parts):
        values = np.empty(shape, dtype)  # np.concatenate would lose the byte order
    else:
        dtype, hole = fillable(dtype)
        values = np.full(shape, hole, dtype)
    along, start = np.moveaxis(values, axis, 0), 0
    for part, length in zip(parts, lengths, strict=True):
        if part is not None:
            along[start : start + length] = np.moveaxis(part.values, axis, 0)
        start += length
    return Piece(first.dims, values, first.attributes, first.is_coordinate)


def _steps(chunk: Pieces) -> int:
    piece = next(piece for piece in chunk.variables.values() if STEP in piece.dims)
    return int(piece.values.shape[piece.dims.index(STEP)])


def _told(form: Form) -> str:
    sizes = ", ".join(f"{dim}: {size}" for dim, size in zip(form.dims, form.sizes, strict=True))
    kind = "coordinate" if form.is_coordinate else "variable"
    values = "" if form.values is None else f" of values {form.values.decode():.60}"
    return f"a {kind} ({sizes.replace('step: 0', 'step')}) of dtype {form.dtype}{values}"
