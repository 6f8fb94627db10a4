"""Restricted unpickling: plain types and numpy arrays of numbers, nothing else.

A pickle is a program. Here it may only name five globals, each replaced by an object that builds
bytes or number arrays; no function of numpy or of any other module is called for it.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from normscope.data.unpack import corrupt

_MEMO_LIMIT = 1_000_000  # the unpickler reserves memory up to the largest index
_NUMBER = re.compile(r"[biuf][1248]")
# fmt: off
_OPCODES = frozenset(
    {  # for plain data: no call but REDUCE, which only the replacements below accept
        "PROTO", "FRAME", "STOP", "MARK", "POP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT",
        "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
        "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
        "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS",
        "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2",
        "TUPLE3", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
        "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
    }
)
# fmt: on


def unpickle_plain(raw: bytes, where: str) -> Any:
    """Load a pickle of plain types and numpy arrays of numbers.

    Byte strings of Python 2 stay bytes. Each array becomes a ``PickledArray``.

    Args:
        raw: the pickle.
        where: the file's name, for messages.

    Raises:
        DataError: if the pickle is damaged or contains anything else.

    >>> unpickle_plain(pickle.dumps({"labels": [3, 1]}), where="example")
    {'labels': [3, 1]}
    """
    try:
        _check_opcodes(raw)
        return _Unpickler(raw).load()
    except Exception as error:  # damaged bytes can fail anywhere in the unpickler
        raise corrupt(where, f"it is not a pickle of plain data ({error})") from error


def _check_opcodes(raw: bytes) -> None:
    for opcode, argument, _ in pickletools.genops(raw):
        if opcode.name not in _OPCODES:
            raise pickle.UnpicklingError(f"the instruction {opcode.name} is not allowed")
        if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > _MEMO_LIMIT:
            raise pickle.UnpicklingError(f"memo index {argument} is too large")


class _Sealed:
    """A replacement of a global, whose state a pickle cannot set."""

    __slots__ = ()

    def __setstate__(self, state: object) -> NoReturn:
        raise pickle.UnpicklingError("it sets the state of a function")


class _ArrayType(_Sealed):
    """Replaces ``numpy.ndarray``, which a pickle names but never calls."""

    __slots__ = ()


class _Reconstruct(_Sealed):
    """Replaces numpy's ``_reconstruct``, which creates an empty array before its state is set."""

    __slots__ = ()

    def __call__(self, subtype: object, shape: object, code: object) -> PickledArray:
        if not isinstance(subtype, _ArrayType):
            raise pickle.UnpicklingError("it makes an array of a foreign type")
        return PickledArray()


class _NumberType(_Sealed):
    """Replaces ``numpy.dtype``."""

    __slots__ = ()

    def __call__(self, code: object, align: object = False, copy: object = True) -> _Number:
        text = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(text, str) or not _NUMBER.fullmatch(text):
            raise pickle.UnpicklingError(f"arrays of type {text!r} are not allowed")
        return _Number(text)


class _Encode(_Sealed):
    """Replaces ``_codecs.encode``, by which protocol 2 writes bytes as latin-1 strings.

    A regular pickle encodes every string once, so that the bytes are no more than the pickle's
    own; without that limit one string, encoded again and again, would fill the memory.
    """

    __slots__ = ("_bytes_left",)

    def __init__(self, limit: int) -> None:
        self._bytes_left = limit

    def __call__(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError("it encodes something else than bytes")
        self._bytes_left -= len(text)
        if self._bytes_left < 0:
            raise pickle.UnpicklingError("it makes more bytes than it has")
        return text.encode("latin-1")


class _Number:
    """A numpy dtype of numbers, with the byte order of its state."""

    def __init__(self, code: str) -> None:
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if any(field is not None for field in state[2:5]):
            raise pickle.UnpicklingError("it describes an array type with fields")
        order: Any = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        self.dtype = self.dtype.newbyteorder(order)


class PickledArray:
    """An array of numbers from a pickle; ``array`` is read-only."""

    array: NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, number, fortran, raw = state
        if not isinstance(number, _Number) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("it holds an array of objects")
        if not all(type(size) is int and size >= 0 for size in shape):
            raise pickle.UnpicklingError("it holds an array of impossible shape")
        if len(raw) != math.prod(shape) * number.dtype.itemsize:
            raise pickle.UnpicklingError("it holds an array whose length is not its shape's")
        order = "F" if fortran else "C"
        self.array = np.frombuffer(raw, dtype=number.dtype).reshape(shape, order=order)  # type: ignore[call-overload]


_GLOBALS: dict[tuple[str, str], _Sealed] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): _ArrayType(),
    ("numpy", "dtype"): _NumberType(),
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw), encoding="bytes")
        self._globals = _GLOBALS | {("_codecs", "encode"): _Encode(limit=len(raw))}

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._globals[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None
