"""CIFAR-10: 32 x 32 colour photographs in six batches, binary or pickled, loose or in a tar."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

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
from normscope.data.dataset import DATASETS, Dataset
from normscope.data.images import load_images
from normscope.data.unpack import corrupt
from normscope.data.unpickle import PickledArray, unpickle_plain

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
        ".",
        "cifar10",
        _BINARY_FOLDER,
        _PICKLE_FOLDER,
        f"cifar10/{_BINARY_FOLDER}",
        f"cifar10/{_PICKLE_FOLDER}",
    ),
    layouts=_LAYOUTS,
    official=_OFFICIAL,
    parse=_parse,
    assemble=_assemble,
    classes=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
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
