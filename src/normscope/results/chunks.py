"""Chunks of steps: check that they fit one another, and join them; fill values of missing cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from normscope.errors import InputError
from normscope.results.codec import RawDataset, RawVariable

STEP = "step"


def _form(variable: RawVariable) -> str:
    """Describe what all chunks of a variable have in common; without steps, its values too."""
    sizes = zip(variable.dims, variable.values.shape, strict=True)
    dims = ", ".join(dim if dim == STEP else f"{dim}: {size}" for dim, size in sizes)
    dtype = variable.values.dtype
    name = dtype.kind if dtype.kind in "US" else dtype.str  # strings may be of any length
    kind = "coordinate" if variable.is_coordinate else "variable"
    values = "" if STEP in variable.dims else f" of values {variable.values.tolist()!r}"
    return f"a {kind} ({dims}) of dtype {name}{values}"


def add_chunk_forms(known: dict[str, str], chunk: RawDataset) -> dict[str, str]:
    """Return the forms of the variables so far together with those of one more chunk.

    A chunk may leave variables out or add new ones; shared variables must have the same form.

    Raises:
        InputError: if the chunk has no steps, or does not fit.
    """
    if not any(STEP in each.dims for each in chunk.variables.values()):
        raise InputError(
            f"a chunk needs a variable with the dimension 'step', got {list(chunk.variables)}; "
            "use .expand_dims(step=[...])."
        )
    added = {name: _form(each) for name, each in chunk.variables.items()}
    for name, form in added.items():
        if known.get(name, form) != form:
            raise InputError(
                f"variable {name!r} does not fit the chunks before it: {known[name]:.120} there, "
                f"{form:.120} here; give every chunk the same variables."
            )
    return known | added


def join(chunks: Sequence[RawDataset]) -> RawDataset:
    """Concatenate chunks along "step".

    A variable that some chunks leave out is filled there. Attributes of a variable are those of
    its first chunk; of the dataset's attributes, the last chunk to name one wins.
    """
    if len(chunks) == 1:
        return chunks[0]
    names = {name: None for chunk in chunks for name in chunk.variables}  # in order
    lengths = [_steps(chunk) for chunk in chunks]
    variables = {
        name: _concatenate([chunk.variables.get(name) for chunk in chunks], lengths)
        for name in names
    }
    attributes: dict[str, Any] = {}
    for chunk in chunks:
        attributes |= chunk.attributes
    return RawDataset(variables, attributes)


def with_fill_value(dtype: np.dtype) -> tuple[np.dtype, Any]:
    """Return the dtype that can hold a missing value, and that value.

    Floats, complex numbers and times have NaN or NaT; integers and booleans become float64; a
    missing string is empty.

    Raises:
        InputError: if the dtype has no such value, as structured ones.

    >>> with_fill_value(np.dtype("float32")), with_fill_value(np.dtype("int8"))
    ((dtype('float32'), nan), (dtype('float64'), nan))
    """
    if dtype.kind in "fc":
        return dtype, np.nan
    if dtype.kind in "biu":
        return np.dtype(float), np.nan
    if dtype.kind in "mM":
        return dtype, np.array("NaT", dtype)
    if dtype.kind in "US":
        return dtype, dtype.type()
    raise InputError(
        f"dtype {dtype} has no value for missing cells; store numbers, or combine records that "
        "all have this variable."
    )


def _concatenate(parts: Sequence[RawVariable | None], lengths: Sequence[int]) -> RawVariable:
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
        dtype, fill = with_fill_value(dtype)
        values = np.full(shape, fill, dtype)
    along, start = np.moveaxis(values, axis, 0), 0
    for part, length in zip(parts, lengths, strict=True):
        if part is not None:
            along[start : start + length] = np.moveaxis(part.values, axis, 0)
        start += length
    return RawVariable(first.dims, values, first.attributes, first.is_coordinate)


def _steps(chunk: RawDataset) -> int:
    variable = next(each for each in chunk.variables.values() if STEP in each.dims)
    return int(variable.values.shape[variable.dims.index(STEP)])
