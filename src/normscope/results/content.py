"""A dataset as strict JSON and compressed npy blobs, and back to the same bits; no pickle.

The JSON (the layout) says which variable has which dimensions and attributes, and which blob holds
its values. A digest over the layout, all blobs and the record's key tells a flipped byte, a lost
blob, and a blob that belongs to another record.
"""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr
from xarray.indexes import PandasMultiIndex

from normscope.errors import ArgumentTypeError
from normscope.results.attributes import decode_attribute, encode_attribute
from normscope.results.identity import plain_text

__all__ = ["Content", "Piece", "Pieces", "assemble", "decode", "encode", "pieces_of"]

_LEVEL = 1  # of zlib; measured values hardly shrink further
_LARGEST_HEADER = 1_000_000  # of an npy file; a structured dtype has a long one


@dataclass(frozen=True, eq=False)
class Piece:
    """One variable of a dataset."""

    dims: tuple[str, ...]
    values: np.ndarray
    attributes: dict[str, Any]
    is_coordinate: bool


@dataclass(frozen=True, eq=False)
class Pieces:
    """A dataset taken apart: cheaper to hold by the thousand than xarray's own."""

    variables: dict[str, Piece]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Content:
    """A dataset as it lies in the file."""

    layout: str
    blobs: tuple[bytes, ...]

    def digest(self, key: str, number: int) -> bytes:
        """A checksum of the content and of where it belongs.

        Args:
            key: of the record.
            number: of the chunk.
        """
        found = hashlib.blake2b(digest_size=16)
        for part in (key.encode(), str(number).encode(), self.layout.encode(), *self.blobs):
            found.update(len(part).to_bytes(8, "big"))
            found.update(part)
        return found.digest()


def pieces_of(dataset: xr.Dataset) -> Pieces:
    """A dataset taken apart.

    Raises:
        ArgumentTypeError: if it is no dataset, or holds names or arrays that cannot be kept.
    """
    if not isinstance(dataset, xr.Dataset):
        raise ArgumentTypeError(
            f"a result must be an xarray.Dataset, got {type(dataset).__name__}; a DataArray has "
            ".to_dataset(name=...)."
        )
    _refuse_stacked(dataset)
    names = (*dataset.coords, *dataset.data_vars)
    variables = {
        _text(name): Piece(
            tuple(_text(dim) for dim in dataset.variables[name].dims),
            _array(dataset.variables[name].values, f"variable {name!r}"),
            dict(dataset.variables[name].attrs),
            name in dataset.coords,
        )
        for name in names
    }
    return Pieces(variables, dict(dataset.attrs))


def assemble(pieces: Pieces) -> xr.Dataset:
    """The dataset of the pieces."""
    parts: dict[bool, dict[str, xr.Variable]] = {True: {}, False: {}}
    for name, piece in pieces.variables.items():
        variable = xr.Variable(piece.dims, piece.values, piece.attributes)
        parts[piece.is_coordinate][name] = variable
    return xr.Dataset(parts[False], coords=parts[True], attrs=pieces.attributes)


def encode(pieces: Pieces) -> Content:
    """What to write to the file."""
    arrays: list[np.ndarray] = []
    variables = []
    for name, piece in pieces.variables.items():
        arrays.append(piece.values)
        variables.append(
            {
                "name": name,
                "dims": piece.dims,
                "coordinate": piece.is_coordinate,
                "array": len(arrays) - 1,
                "attributes": _encode_attributes(piece.attributes, arrays, f"of {name!r}"),
            }
        )
    attributes = _encode_attributes(pieces.attributes, arrays, "of the dataset")
    layout = {"variables": variables, "attributes": attributes}
    text = json.dumps(layout, separators=(",", ":"), allow_nan=False)
    return Content(text, tuple(map(_compress, arrays)))


def decode(content: Content) -> Pieces:
    """What was written; the digest must have been checked."""
    arrays = [_decompress(blob) for blob in content.blobs]
    layout = json.loads(content.layout)
    variables = {
        each["name"]: Piece(
            tuple(each["dims"]),
            arrays[each["array"]],
            _decode_attributes(each["attributes"], arrays),
            each["coordinate"],
        )
        for each in layout["variables"]
    }
    return Pieces(variables, _decode_attributes(layout["attributes"], arrays))


def _encode_attributes(
    attributes: dict[str, Any], arrays: list[np.ndarray], owner: str
) -> list[tuple[str, Any]]:
    before = len(arrays)
    found = [
        (_text(name), encode_attribute(value, arrays, f"attribute {name!r} {owner}"))
        for name, value in attributes.items()
    ]
    for position in range(before, len(arrays)):
        arrays[position] = _array(arrays[position], f"an attribute {owner}")
    return found


def _decode_attributes(encoded: Iterable[Any], arrays: list[np.ndarray]) -> dict[str, Any]:
    return {name: decode_attribute(value, arrays) for name, value in encoded}


def _refuse_stacked(dataset: xr.Dataset) -> None:
    for name, index in dataset.xindexes.items():
        if isinstance(index, PandasMultiIndex):
            raise ArgumentTypeError(
                f"coordinate {name!r} belongs to a MultiIndex, which a store cannot keep; use "
                ".unstack() or .reset_index(...)."
            )


def _text(name: Any) -> str:
    return plain_text(name, f"the name {name!r} of a variable, dimension or attribute")


def _array(values: Any, place: str) -> np.ndarray:
    """The values as an array that npy can hold without pickle.

    Texts held as objects, as xarray makes them in ``expand_dims``, become texts of fixed width.
    """
    array = np.asarray(values)
    if array.dtype == object and all(isinstance(each, str) for each in array.flat):
        array = array.astype(str)
    if array.dtype.hasobject or array.dtype.kind == "T":
        raise ArgumentTypeError(
            f"{place} has the dtype {array.dtype}, which only pickle could keep; convert it, texts "
            "by .astype(str) and numbers by .astype(float)."
        )
    return array


def _compress(array: np.ndarray) -> bytes:
    try:
        return zlib.compress(_npy(array, (1, 0)), _LEVEL)
    except ValueError:  # a structured dtype with many names, or with names beyond Latin-1
        return zlib.compress(_npy(array, (3, 0)), _LEVEL)


def _npy(array: np.ndarray, version: tuple[int, int]) -> memoryview:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version, allow_pickle=False)
    return stream.getbuffer()


def _decompress(blob: bytes) -> np.ndarray:
    npy = zlib.decompress(blob)
    if npy[6] != 1:  # the version
        array: np.ndarray = np.lib.format.read_array(
            io.BytesIO(npy), allow_pickle=False, max_header_size=_LARGEST_HEADER
        )
        return array
    start = 10 + int.from_bytes(npy[8:10], "little")
    shape, in_columns, dtype = _read_header(npy[:start])
    values: np.ndarray = np.ndarray(shape, dtype, npy, start, order="F" if in_columns else "C")
    return values.copy("K")  # one that may be changed


@lru_cache(maxsize=1024)
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and dtype; the cells of a sweep have the same few, and parsing them is slow."""
    stream = io.BytesIO(header)
    np.lib.format.read_magic(stream)
    return np.lib.format.read_array_header_1_0(stream, max_header_size=_LARGEST_HEADER)
