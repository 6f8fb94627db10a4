"""Arrays as compressed npy blobs, read without pickle and never beyond their declared shape.

A file from elsewhere may declare any dtype and any shape. Only dtypes without pointers to objects
are read, and no more bytes are unpacked than the declared shape needs.
"""

from __future__ import annotations

import io
import math
import os
import zlib
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

_LEVEL = 1  # of zlib; measured values hardly shrink further
_LARGEST_HEADER = 1_000_000  # bytes of an npy header; a structured dtype has a long one
_KINDS = "biufcmMSUV"  # numbers, times, strings, raw bytes, and structures of these
_MOST_EMPTY = 1_000_000  # values of a dtype without bytes, which take time and no memory
_START = 10  # bytes before an npy header of version 1: magic string, version, length
_VERSION_1 = b"\x01\x00"


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
        content = unpacker.decompress(blob, _START + _LARGEST_HEADER)
        if content[6:8] != _VERSION_1:
            return _read_other_version(blob)
        header = _read_header(content[: _START + int.from_bytes(content[8:10], "little")])
        if len(content) < header.size:
            content += unpacker.decompress(unpacker.unconsumed_tail, header.size - len(content))
        if len(content) != header.size or not _has_ended(unpacker):
            raise ValueError("an array has another length than its shape")
        order: Any = "F" if header.in_columns else "C"
        values = np.ndarray(header.shape, header.dtype, content, header.end, order=order)
        return values.copy("K")  # writable
    except (zlib.error, MemoryError) as error:
        raise ValueError(f"an array cannot be unpacked ({error})") from error


class _Header(NamedTuple):
    """What an npy header declares."""

    shape: tuple[int, ...]
    in_columns: bool
    dtype: np.dtype
    end: int  # where the values begin
    size: int  # of the whole npy


@lru_cache(maxsize=1024)
def _read_header(text: bytes) -> _Header:
    """Read a header by numpy; the cells of a sweep share a few, and parsing is slow."""
    stream = io.BytesIO(text)
    try:
        np.lib.format.read_magic(stream)
        shape, in_columns, dtype = np.lib.format.read_array_header_1_0(stream, _LARGEST_HEADER)
    except Exception as error:  # the parser may raise anything on malformed text
        raise ValueError(f"the header of an array cannot be read ({error})") from error
    _check_declared(shape, dtype)
    size = len(text) + math.prod(shape) * dtype.itemsize
    return _Header(shape, in_columns, dtype, len(text), size)


def _check_declared(shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Raise a ValueError for what numpy must not be asked for; on some of it, it would crash."""
    if not is_plain(dtype):
        raise ValueError(f"an array has the dtype {dtype}, which is not of plain values")
    if any(length < 0 for length in shape):
        raise ValueError(f"an array has the shape {shape}")
    size = math.prod(shape)
    if size * dtype.itemsize > _memory() / 2:  # unpacked, and copied
        raise ValueError(f"an array of shape {shape} and dtype {dtype} does not fit in memory")
    if dtype.itemsize == 0 and size > _MOST_EMPTY:
        raise ValueError(f"an array has {size} values of no length")


class _Unpacked:
    """The unpacked bytes of a blob, read no further than asked for."""

    def __init__(self, blob: bytes) -> None:
        self.unpacker = zlib.decompressobj()
        self._packed = blob

    def read(self, size: int) -> bytes:
        """Return at most so many bytes; none at the end."""
        if size <= 0:
            return b""
        piece = self.unpacker.decompress(self._packed, size)
        self._packed = self.unpacker.unconsumed_tail
        return piece


def _read_other_version(blob: bytes) -> np.ndarray:
    stream: Any = _Unpacked(blob)
    try:
        array: np.ndarray = np.lib.format.read_array(
            stream, allow_pickle=False, max_header_size=_LARGEST_HEADER
        )
    except Exception as error:  # the parser may raise anything on malformed text
        raise ValueError(f"an array cannot be read ({error})") from error
    _check_declared(array.shape, array.dtype)
    if not _has_ended(stream.unpacker):
        raise ValueError("an array has another length than its shape")
    return array


def _has_ended(unpacker: Any) -> bool:
    """Return whether all was unpacked, and the checksum of zlib is right."""
    return unpacker.eof or (not unpacker.decompress(unpacker.unconsumed_tail, 1) and unpacker.eof)


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
