"""CIFAR-10: 32 x 32 colour photographs in six batches, binary or pickled, loose or in a tar.

A pickle is a program. Here it may only name five globals, each replaced by an object that builds
bytes or number arrays; no function of numpy or of any other module is called for it.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import pickletools
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from normscope.data.collection import (
    COLLECTIONS,
    Collection,
    Layout,
    Official,
    Pixels,
    PixelSplits,
)
from normscope.data.content import corrupt
from normscope.data.dataset import DATASETS, Dataset
from normscope.data.images import load_images

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
        for opcode, argument, _ in pickletools.genops(raw):
            if opcode.name not in _OPCODES:
                raise pickle.UnpicklingError(f"the instruction {opcode.name} is not allowed")
            if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > _MEMO_LIMIT:
                raise pickle.UnpicklingError(f"memo index {argument} is too large")
        return _Unpickler(raw).load()
    except Exception as error:  # damaged bytes can fail anywhere in the unpickler
        raise corrupt(where, f"it is not a pickle of plain data ({error})") from error


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


CLASSES = 10
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS  # one label byte, then the red, green and blue plane

_BATCH_SIZE = 30_730_000  # 10,000 records
_PICKLE_OVERHEAD = 16 << 20  # labels, file names and pickle instructions

# sha256 of the official binary batches; pickled batches are converted before they are compared
_OFFICIAL = {
    part: Official(sha256, _BATCH_SIZE)
    for part, sha256 in {
        "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    }.items()
}


def parse_records(raw: bytes, where: str) -> Pixels:
    """Parse a binary batch into records of 3,073 bytes: label, then pixels.

    Args:
        raw: the content of the batch.
        where: the file's name, for messages.

    Returns:
        The records, read-only; they share the memory of ``raw``.

    Raises:
        DataError: if the length is not a multiple of a record, or a label is not in 0 to 9.

    >>> parse_records(bytes(2 * 3073), where="example").shape
    (2, 3073)
    """
    if not raw or len(raw) % RECORD:
        raise corrupt(where, f"its {len(raw)} bytes are not a multiple of {RECORD}-byte records")
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, RECORD)
    if (largest := int(records[:, 0].max())) >= CLASSES:
        raise corrupt(where, f"it has the label {largest}, and labels go from 0 to {CLASSES - 1}")
    return records


def records_of_pickle(raw: bytes, where: str) -> bytes:
    """Convert a pickled batch to the content of the equivalent binary batch.

    Both forms are then compared with the same digests, however the arrays were pickled.

    Args:
        raw: the pickle.
        where: the file's name, for messages.

    Returns:
        The records, as the binary version writes them.

    Raises:
        DataError: if the pickle does not hold images and as many labels, or holds anything that
            is not plain data.
    """
    batch = unpickle_plain(raw, where)
    if not isinstance(batch, dict):
        raise corrupt(where, "its pickle is not a dictionary")
    images, labels = _entry(batch, "data"), _entry(batch, "labels")
    if images is None or images.dtype != np.uint8 or images.shape[1:] != (PIXELS,):
        raise corrupt(where, f"its 'data' is not an array of {PIXELS} bytes per image")
    if labels is None or labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise corrupt(where, "its 'labels' are not one integer per image")
    if labels.size and (labels.min() < 0 or labels.max() >= CLASSES):
        raise corrupt(where, f"its labels are not all in 0 to {CLASSES - 1}")
    return np.column_stack([labels.astype(np.uint8), images]).tobytes()


def _entry(batch: dict[Any, Any], key: str) -> NDArray[Any] | None:
    """Return an entry as an array; keys are bytes if Python 2 wrote the pickle."""
    value = batch.get(key.encode(), batch.get(key))
    if isinstance(value, PickledArray):
        return getattr(value, "array", None)  # absent if the pickle never set its state
    if isinstance(value, list) and all(type(item) is int and abs(item) < 2**31 for item in value):
        return np.array(value, dtype=np.int64)
    return None


_BINARY_FOLDER, _PICKLE_FOLDER = "cifar-10-batches-bin", "cifar-10-batches-py"
_LAYOUTS = (
    Layout({part: (f"{part}.bin", f"{part}.bin.xz") for part in _OFFICIAL}),
    Layout(
        {part: (f"{_BINARY_FOLDER}/{part}.bin",) for part in _OFFICIAL},
        archive="cifar-10-binary.tar.gz",
    ),
    Layout(
        {part: (part,) for part in _OFFICIAL},
        decode=records_of_pickle,
        overhead=_PICKLE_OVERHEAD,
    ),
    Layout(
        {part: (f"{_PICKLE_FOLDER}/{part}",) for part in _OFFICIAL},
        archive="cifar-10-python.tar.gz",
        decode=records_of_pickle,
        overhead=_PICKLE_OVERHEAD,
    ),
)


def _parse(part: str, raw: bytes, where: str) -> Pixels:
    del part  # all batches have the same form
    return parse_records(raw, where)


def _assemble(arrays: Mapping[str, Pixels], where: str) -> PixelSplits:
    del where  # every record has the same size: nothing left to check
    train = np.concatenate([arrays[part] for part in _OFFICIAL if part != "test_batch"])
    test = arrays["test_batch"]
    return PixelSplits(
        train[:, 1:].reshape(-1, *SHAPE), train[:, 0], test[:, 1:].reshape(-1, *SHAPE), test[:, 0]
    )


CIFAR10 = Collection(
    name="cifar10",
    folders=(
        *(".", "cifar10", _BINARY_FOLDER, _PICKLE_FOLDER),
        *(f"cifar10/{_BINARY_FOLDER}", f"cifar10/{_PICKLE_FOLDER}"),
    ),
    layouts=_LAYOUTS,
    official=_OFFICIAL,
    parse=_parse,
    assemble=_assemble,
    classes=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    downloads={
        "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    },
    mirrors=("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
)
COLLECTIONS[CIFAR10.name] = CIFAR10


@DATASETS.register
def cifar10(root: str | os.PathLike[str] | None = None, verify: bool = True) -> Dataset:
    """Colour photographs of 32 x 32 pixels in 10 classes: 50,000 to train on, 10,000 to test on.

    Args:
        root: the folder that holds the files; None: the default folders.
        verify: require the official content; a variant may differ in number of images.

    Returns:
        Images (samples, 3, 32, 32) and labels 0 to 9.
    """
    return load_images(CIFAR10, root, verify)
