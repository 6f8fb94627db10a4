"""The two official forms of a CIFAR-10 batch: binary records, and a pickled dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.data.unpack import corrupt
from normscope.data.unpickle import PickledArray, unpickle_plain

CLASSES = 10
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS  # one label byte, then the red, green and blue plane


def parse_records(raw: bytes, where: str) -> NDArray[np.uint8]:
    """The records of a binary batch, one row of 3,073 bytes each: label, then pixels.

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
        raise corrupt(
            where, f"its {len(raw)} bytes are not a whole number of {RECORD}-byte records"
        )
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, RECORD)
    if (largest := int(records[:, 0].max())) >= CLASSES:
        raise corrupt(where, f"it has the label {largest}, and labels go from 0 to {CLASSES - 1}")
    return records


def records_of_pickle(raw: bytes, where: str) -> bytes:
    """The content of the binary batch that holds what this pickled batch holds.

    So both forms are held against the same digests, whoever pickled the arrays and how.

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
        raise corrupt(where, "its 'labels' are not one whole number per image")
    if labels.size and (labels.min() < 0 or labels.max() >= CLASSES):
        raise corrupt(where, f"its labels are not all in 0 to {CLASSES - 1}")
    return np.column_stack([labels.astype(np.uint8), images]).tobytes()


def _entry(batch: dict[Any, Any], key: str) -> NDArray[Any] | None:
    """The value as an array; the keys are bytes if Python 2 wrote the pickle."""
    value = batch.get(key.encode(), batch.get(key))
    if isinstance(value, PickledArray):
        return getattr(value, "array", None)  # absent if the pickle never set its state
    if isinstance(value, list) and all(type(item) is int and abs(item) < 2**31 for item in value):
        return np.array(value, dtype=np.int64)
    return None
