from __future__ import annotations

import struct

import numpy as np
import pytest
from tests.unit.data.synthetic import idx

from normscope.data.mnist import parse_idx
from normscope.errors import DataError

ARRAY = np.arange(24).reshape(2, 3, 4)


def test_parse_idx_gives_the_array_back() -> None:
    np.testing.assert_array_equal(parse_idx(idx(ARRAY), 3, "x"), ARRAY)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "starts with 00000803, this one with nothing"),
        (b"\x00\x00\x08", "this one with 000008"),
        (idx(ARRAY[0]), "this one with 00000802"),
        (b"\x00\x00\x0d\x03" + idx(ARRAY)[4:], "this one with 00000d03"),
        (idx(ARRAY)[:10], "its header needs 16 bytes and it has only 10"),
        (idx(ARRAY)[:-1], "says 2 x 3 x 4, 40 bytes, and it has 39"),
        (idx(ARRAY) + b"\x00", "40 bytes, and it has 41"),
        (idx(ARRAY[:0]), "says 0 x 3 x 4"),
        (b"\x00\x00\x08\x03" + struct.pack(">3I", *[2**32 - 1] * 3), "4294967295 x 4294967295"),
        (b"\x00\x00\x08\x03" + struct.pack(">3I", 2**31, 2**31, 4), "bytes, and it has 16"),
    ],
)
def test_parse_idx_refuses_what_does_not_fit(raw: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        parse_idx(raw, 3, "some-file")
    assert "some-file" in str(caught.value)
