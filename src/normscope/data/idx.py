"""The IDX format of MNIST: a magic number, big-endian sizes, then unsigned bytes."""

from __future__ import annotations

import math
import struct

import numpy as np
from numpy.typing import NDArray

from normscope.data.unpack import corrupt

_UNSIGNED_BYTE = 0x08


def parse_idx(raw: bytes, dimensions: int, where: str) -> NDArray[np.uint8]:
    """The array of unsigned bytes that an IDX file holds.

    Args:
        raw: the content of the file.
        dimensions: how many dimensions it must have.
        where: the file's name, for messages.

    Returns:
        The array, read-only; it shares the memory of ``raw``.

    Raises:
        DataError: if magic number, sizes and length do not fit together.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), dimensions=1, where="example").tolist()
    [7, 9]
    """
    header = 4 + 4 * dimensions
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if raw[:4] != magic:
        raise corrupt(
            where,
            f"an IDX file of bytes in {dimensions} dimensions starts with {magic.hex()}, "
            f"this one with {raw[:4].hex() or 'nothing'}",
        )
    if len(raw) < header:
        raise corrupt(where, f"its header needs {header} bytes and it has only {len(raw)}")
    shape = struct.unpack(f">{dimensions}I", raw[4:header])
    expected = header + math.prod(shape)  # Python's integers: no overflow for absurd sizes
    if len(raw) != expected or 0 in shape:
        sizes = " x ".join(map(str, shape))
        raise corrupt(where, f"its header says {sizes}, {expected} bytes, and it has {len(raw)}")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)
