"""Datasets as strict JSON and compressed npy blobs, restored bit for bit; no pickle.

The JSON (the layout) lists each variable with its dimensions and attributes, and which blob holds
its values. A digest over the layout, all blobs and the record's key detects a flipped byte, a lost
blob, and a blob of another record. A file from elsewhere may declare any dtype and any shape: only
dtypes without pointers to objects are read, and no more bytes are unpacked than the declared shape
needs.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import math
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from xarray.indexes import PandasMultiIndex

from normscope.errors import ArgumentTypeError
from normscope.results.record import DEEPEST, check_string, dump_json, nesting_error

_LEVEL = 1  # of zlib; measured values hardly shrink further
_LARGEST_HEADER = 1_000_000  # bytes of an npy header; a structured dtype has a long one
_KINDS = "biufcmMSUV"  # numbers, times, strings, raw bytes, and structures of these
_MOST_EMPTY = 1_000_000  # values of a dtype without bytes, which take time and no memory


def is_plain(dtype: np.dtype) -> bool:
    """Return whether the values of a dtype are bytes alone, without pointers to objects.

    >>> is_plain(np.dtype("f4, U3")), is_plain(np.dtype("f4, O"))
    (True, False)
    """
    return dtype.kind in _KINDS and not dtype.hasobject


def compress(array: np.ndarray) -> bytes:
    """Return an array of a plain dtype as a compressed npy blob."""
    try:
        return zlib.compress(_npy(array, (1, 0)), _LEVEL)
    except ValueError:  # a structured dtype with many names, or with names beyond Latin-1
        return zlib.compress(_npy(array, (3, 0)), _LEVEL)


def decompress(blob: bytes) -> np.ndarray:
    """Return the array of a blob, writable.

    Raises:
        ValueError: if it is not a blob of `compress`; the message is part of a sentence.
    """
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(blob, _LARGEST_HEADER)
        start = 10 if content[6:7] == b"\x01" else 12  # later versions have a longer length field
        end = start + int.from_bytes(content[8:start], "little")
        header = _read_header(content[:end], start)
        if len(content) < header.size:
            content += unpacker.decompress(unpacker.unconsumed_tail, header.size - len(content))
        # the end of the blob has the checksum of zlib
        has_ended = unpacker.eof or not unpacker.decompress(unpacker.unconsumed_tail, 1)
        if len(content) != header.size or not (has_ended and unpacker.eof):
            raise ValueError("an array has another length than its shape")
        values = np.ndarray(header.shape, header.dtype, content, header.end, order=header.order)
        return values.copy("K")  # writable
    except (zlib.error, MemoryError) as error:
        raise ValueError(f"an array cannot be unpacked ({error})") from error


class _Header(NamedTuple):
    """What an npy header declares."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype
    end: int  # where the values begin
    size: int  # of the whole npy


@lru_cache(maxsize=1024)
def _read_header(text: bytes, start: int) -> _Header:
    """Parse an npy header before numpy allocates anything; the cells of a sweep share a few."""
    try:
        np.lib.format.read_magic(io.BytesIO(text))
        declared = ast.literal_eval(text[start:].decode("latin-1" if start == 10 else "utf-8"))
        shape, in_columns = declared["shape"], declared["fortran_order"]
        dtype = np.lib.format.descr_to_dtype(declared["descr"])
    except Exception as error:  # the parser may raise anything on malformed text
        raise ValueError(f"the header of an array cannot be read ({error})") from error
    _check_declared(shape, dtype)
    size = len(text) + math.prod(shape) * dtype.itemsize
    return _Header(shape, "F" if in_columns else "C", dtype, len(text), size)


def _check_declared(shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise a ValueError for what numpy must not be asked for; on some of it, it would crash."""
    if not is_plain(dtype):
        raise ValueError(f"an array has the dtype {dtype}, which is not of plain values")
    if type(shape) is not tuple or any(type(each) is not int or each < 0 for each in shape):
        raise ValueError(f"an array has the shape {shape}")
    size = math.prod(shape)
    if size * dtype.itemsize > _memory() / 2:  # unpacked, and copied
        raise ValueError(f"an array of shape {shape} and dtype {dtype} does not fit in memory")
    if dtype.itemsize == 0 and size > _MOST_EMPTY:
        raise ValueError(f"an array has {size} values of no length")


@cache
def _memory() -> float:
    """Bytes of this machine's memory; infinity if unknown."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf


def _npy(array: np.ndarray, version: tuple[int, int]) -> memoryview:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version, allow_pickle=False)
    return stream.getbuffer()


@dataclass(frozen=True, eq=False)
class RawVariable:
    """One variable of a dataset."""

    dims: tuple[str, ...]
    values: np.ndarray
    attributes: dict[str, Any]
    is_coordinate: bool


@dataclass(frozen=True, eq=False)
class RawDataset:
    """Variables and attributes of a dataset; cheaper than `xr.Dataset` by the thousand."""

    variables: dict[str, RawVariable]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Content:
    """An encoded dataset."""

    layout: str
    blobs: tuple[bytes, ...]

    def digest(self, key: str, number: int) -> bytes:
        """Checksum of the content and of where it belongs.

        Args:
            key: of the record.
            number: of the chunk.
        """
        found = hashlib.blake2b(digest_size=16)
        for part in (key.encode(), str(number).encode(), self.layout.encode(), *self.blobs):
            found.update(len(part).to_bytes(8, "big"))
            found.update(part)
        return found.digest()


def to_raw(dataset: xr.Dataset) -> RawDataset:
    """Split a dataset into plain arrays.

    Raises:
        ArgumentTypeError: if it is not a dataset, or holds names or arrays that cannot be stored.
    """
    if not isinstance(dataset, xr.Dataset):
        raise ArgumentTypeError(
            f"a result must be an xarray.Dataset, got {type(dataset).__name__}; a DataArray has "
            ".to_dataset(name=...)."
        )
    for name, index in dataset.xindexes.items():
        if isinstance(index, PandasMultiIndex):
            raise ArgumentTypeError(
                f"coordinate {name!r} belongs to a MultiIndex, which a store cannot keep; use "
                ".unstack() or .reset_index(...)."
            )
    variables = {
        _check_name(name): RawVariable(
            tuple(_check_name(dim) for dim in dataset.variables[name].dims),
            _storable(dataset.variables[name].values, f"variable {name!r}"),
            dict(dataset.variables[name].attrs),
            name in dataset.coords,
        )
        for name in (*dataset.coords, *dataset.data_vars)
    }
    return RawDataset(variables, dict(dataset.attrs))


def from_raw(raw: RawDataset) -> xr.Dataset:
    """Build the dataset of raw variables."""
    parts: dict[bool, dict[str, xr.Variable]] = {True: {}, False: {}}
    for name, each in raw.variables.items():
        parts[each.is_coordinate][name] = xr.Variable(each.dims, each.values, each.attributes)
    return xr.Dataset(parts[False], coords=parts[True], attrs=raw.attributes)


def encode(raw: RawDataset) -> Content:
    """Encode a dataset for the store."""
    arrays: list[np.ndarray] = []
    variables = []
    for name, each in raw.variables.items():
        arrays.append(each.values)
        variables.append(
            {
                "name": name,
                "dims": each.dims,
                "coordinate": each.is_coordinate,
                "array": len(arrays) - 1,
                "attributes": _encode_attributes(each.attributes, arrays, f"of {name!r}"),
            }
        )
    attributes = _encode_attributes(raw.attributes, arrays, "of the dataset")
    layout = {"variables": variables, "attributes": attributes}
    return Content(dump_json(layout, "an attribute"), tuple(map(compress, arrays)))


def decode(content: Content) -> RawDataset:
    """Decode a dataset whose digest has been checked; a forged one may hold anything.

    Raises:
        ValueError: if it is not what `encode` returns; the message is part of a sentence.
    """
    arrays = [decompress(blob) for blob in content.blobs]
    try:
        layout = json.loads(content.layout)
        variables = {each["name"]: _variable(each, arrays) for each in layout["variables"]}
        attributes = _decode_attributes(layout["attributes"], arrays)
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"its layout cannot be read ({type(error).__name__})") from error
    _check_sizes(variables)
    return RawDataset(variables, attributes)


def _variable(encoded: dict[str, Any], arrays: list[np.ndarray]) -> RawVariable:
    name, dims, is_coordinate = encoded["name"], tuple(encoded["dims"]), encoded["coordinate"]
    values = _array(encoded["array"], arrays)
    if not all(isinstance(each, str) for each in (name, *dims)) or type(is_coordinate) is not bool:
        raise ValueError("its layout has a name that is not a string, or no mark of coordinates")
    if len(dims) != values.ndim or len(set(dims)) < len(dims):
        raise ValueError(f"variable {name!r} has {values.ndim} axes and the dimensions {dims}")
    attributes = _decode_attributes(encoded["attributes"], arrays)
    return RawVariable(dims, values, attributes, is_coordinate)


def _array(position: Any, arrays: list[np.ndarray]) -> np.ndarray:
    if type(position) is not int or position < 0:
        raise ValueError(f"its layout names the array {position!r:.40}")
    return arrays[position]


def _check_sizes(variables: dict[str, RawVariable]) -> None:
    sizes: dict[str, int] = {}
    for each in variables.values():
        for dim, size in zip(each.dims, each.values.shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ValueError(f"its variables have {sizes[dim]} and {size} values along {dim!r}")


def _encode_attributes(
    attributes: dict[str, Any], arrays: list[np.ndarray], owner: str
) -> list[tuple[str, Any]]:
    before = len(arrays)
    found = [
        (_check_name(name), _encode_value(value, arrays, f"attribute {name!r} {owner}"))
        for name, value in attributes.items()
    ]
    for position in range(before, len(arrays)):
        arrays[position] = _storable(arrays[position], f"an attribute {owner}")
    return found


def _decode_attributes(encoded: Iterable[Any], arrays: list[np.ndarray]) -> dict[str, Any]:
    return {_known_name(name): _decode_value(value, arrays) for name, value in encoded}


def _encode_value(value: Any, arrays: list[np.ndarray], label: str, levels: int = DEEPEST) -> Any:
    """Encode an attribute's value as strict JSON.

    JSON types stand for themselves. Tuples, mappings, floats that are not finite and numpy values
    become an object with a "type"; numpy values are appended to ``arrays``.
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
        return check_string(value, label)
    if type(value) in (list, tuple, dict) and not levels:
        raise nesting_error(label)
    if type(value) in (list, tuple):
        items = [_encode_value(item, arrays, label, levels - 1) for item in value]
        return items if type(value) is list else {"type": "tuple", "value": items}
    if type(value) is dict:
        items = [
            [
                check_string(name, f"a name in {label}"),
                _encode_value(item, arrays, label, levels - 1),
            ]
            for name, item in value.items()
        ]
        return {"type": "mapping", "value": items}
    raise ArgumentTypeError(
        f"{label} is of type {type(value).__name__}, which a store cannot keep; use numbers, "
        "strings, arrays, and lists or dicts of them."
    )


def _decode_value(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_decode_value(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    kind, inner = value["type"], value["value"]
    if kind == "float":
        return float(inner)
    if kind == "scalar":
        return _array(inner, arrays)[()]
    if kind == "array":
        return _array(inner, arrays)
    if kind == "tuple":
        return tuple(_decode_value(item, arrays) for item in inner)
    return _decode_attributes(inner, arrays)


def _check_name(name: Any) -> str:
    return check_string(name, f"the name {name!r} of a variable, dimension or attribute")


def _known_name(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"its layout has the name {name!r:.40}, which is not a string")
    return name


def _storable(values: Any, label: str) -> np.ndarray:
    """Return the values as an array that npy can hold without pickle.

    Strings held as objects, as xarray makes them in ``expand_dims``, become fixed-width strings.
    """
    array = np.asarray(values)
    if array.dtype == object and all(isinstance(each, str) for each in array.flat):
        array = array.astype(str)
    if not is_plain(array.dtype):
        raise ArgumentTypeError(
            f"{label} has the dtype {array.dtype}, which only pickle could keep; convert strings "
            "by .astype(str) and numbers by .astype(float)."
        )
    return array
