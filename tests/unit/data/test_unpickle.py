from __future__ import annotations

import collections
import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from normscope.data import cifar10
from normscope.data.cifar10 import PickledArray, unpickle_plain
from normscope.errors import DataError


class Calls:
    """Pickles as a call of any function."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(5))
def test_unpickle_gives_plain_values(protocol: int) -> None:
    value = {"a": [1, -2, 2**40, True, None, 0.5], "b": ("text", b"bytes\xff"), 3: {}}
    assert unpickle_plain(pickle.dumps(value, protocol=protocol), "x") == value


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "f4", "bool"])
def test_unpickle_gives_arrays_of_numbers(protocol: int, dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    for stored in (array, np.asfortranarray(array)):
        found = unpickle_plain(pickle.dumps(stored, protocol=protocol), "x")
        assert isinstance(found, PickledArray)
        np.testing.assert_array_equal(found.array, array)
        assert found.array.dtype == array.dtype


@pytest.mark.parametrize(
    ("value", "culprit"),
    [
        (Calls(os.system, "touch {marker}"), "system"),
        (Calls(eval, "open('{marker}', 'w')"), "eval"),
        (Calls(exec, "open('{marker}', 'w')"), "exec"),
        (Calls(getattr, "text", "upper"), "getattr"),
        (Calls(os.mkdir, "{marker}"), "mkdir"),
        (Calls(np.fromfile, "/etc/hostname", "u1"), "fromfile"),
        (Calls(np.memmap, "{marker}", "u1", "w+", 0, (3,)), "memmap"),
        (Calls(np.load, "{marker}", None, True), "load"),
        (collections.OrderedDict(a=1), "OrderedDict"),
        (np.float64(1.5), "scalar"),
        (Path("a"), "Path"),
        (1j, "complex"),
        (set, "set"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_unpickle_refuses_every_other_global(
    tmp_path: Path, value: object, culprit: str, protocol: int
) -> None:
    marker = tmp_path / "marker"
    if isinstance(value, Calls):
        function, arguments = value.call
        filled = (a.format(marker=marker) if isinstance(a, str) else a for a in arguments)
        value = Calls(function, *filled)
    with pytest.raises(DataError, match=culprit) as caught:
        unpickle_plain(pickle.dumps({"data": value}, protocol=protocol), "some-file")
    assert "some-file cannot be used" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_unpickle_refuses_arrays_of_objects() -> None:
    with pytest.raises(DataError, match="'O8' are not allowed"):
        unpickle_plain(pickle.dumps(np.array([[], {}], dtype=object), protocol=4), "x")


def test_unpickle_refuses_arrays_with_fields() -> None:
    with pytest.raises(DataError, match="'V3' are not allowed"):
        unpickle_plain(pickle.dumps(np.zeros(2, dtype="u1,u2"), protocol=4), "x")


def test_unpickle_refuses_subclasses_of_arrays() -> None:
    with pytest.raises(DataError, match="matrix"):
        unpickle_plain(pickle.dumps(np.zeros((2, 2)).view(np.matrix), protocol=4), "x")


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
ARRAY = RECONSTRUCT + b"(cnumpy\nndarray\n(K\x00tU\x01btR"
DTYPE = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (RECONSTRUCT + b"(cnumpy\ndtype\n(K\x00tU\x01btR", "an array of a foreign type"),
        (RECONSTRUCT + b"}U\x01aK\x01sb", "sets the state of a function"),
        (b"cnumpy\nndarray\n(K\x03tR", "not callable"),
        (b"cnumpy\nndarray\n)\x81", "NEWOBJ is not allowed"),
        (b"(inumpy\nndarray\n", "INST is not allowed"),
        (b"(cnumpy\nndarray\no", "OBJ is not allowed"),
        (b"\x82\x01", "EXT1 is not allowed"),
        (b"Pname\n", "PERSID is not allowed"),
        (b"]r\xff\xff\xff\x7f", "memo index 2147483647 is too large"),
        (b"]p999999999\n", "memo index 999999999 is too large"),
        (b"B\xff\xff\xff\x7f", "bytes"),
        (b"}K\x01b", "state is not a dictionary"),
        (b"}}U\x01aK\x01sb", "__dict__"),
        (ARRAY + b"(K\x01K\x05\x85" + DTYPE + b"\x89U\x04abcdtb", "length is not its shape's"),
        (ARRAY + b"(K\x01J\xff\xff\xff\xff\x85" + DTYPE + b"\x89U\x04abcdtb", "impossible shape"),
        (ARRAY + b"(K\x01K\x05\x85" + DTYPE + b"\x89](K\x01etb", "an array of objects"),
        (ARRAY + b"(K\x01K\x05\x85U\x02u1\x89U\x05abcdetb", "an array of objects"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aU\x04rot3tR", "encodes something else"),
        (b"cnumpy\ndtype\n(U\x03S99K\x00K\x01tR", "'S99' are not allowed"),
        (b"cnumpy\ndtype\n(]K\x00K\x01tR", "are not allowed"),
    ],
)
def test_unpickle_refuses_hostile_programs(program: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        unpickle_plain(b"\x80\x02" + program + b".", "x")


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\x80\x02}", b"garbage", b"\x80\x63."])
def test_unpickle_refuses_damaged_pickles(raw: bytes) -> None:
    with pytest.raises(DataError, match="not a pickle of plain data"):
        unpickle_plain(raw, "x")


def test_unpickle_refuses_truncation_everywhere() -> None:
    whole = pickle.dumps({"data": np.arange(8, dtype="u1"), "labels": [1, 2]}, protocol=2)
    for end in range(len(whole)):
        with pytest.raises(DataError):
            unpickle_plain(whole[:end], "x")


def test_unpickle_cannot_change_its_stand_ins() -> None:
    before = dict(cifar10._GLOBALS)
    state = b"}X\x04\x00\x00\x00nameK\x01s"
    for module, name in [*before, ("_codecs", "encode")]:
        for change in (state, b"N" + state + b"\x86"):
            with pytest.raises(DataError, match="sets the state of a function"):
                unpickle_plain(b"\x80\x02c" + f"{module}\n{name}\n".encode() + change + b"b.", "x")
    assert before == cifar10._GLOBALS
    stand_ins = [*before.values(), cifar10._Encode(limit=0)]
    assert not any(hasattr(stand_in, "__dict__") for stand_in in stand_ins)


def test_unpickle_reads_a_huge_claimed_length_without_reserving_it() -> None:
    with pytest.raises(DataError):
        unpickle_plain(b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc.", "x")


def encoding_again(times: int, text: bytes = b"a" * 1000) -> bytes:
    """A program that encodes one memoised text several times."""
    call = b"h\x00h\x01h\x02\x86R"
    start = b"c_codecs\nencode\nq\x00X" + struct.pack("<I", len(text)) + text + b"q\x01"
    return b"\x80\x02(" + start + b"X\x06\x00\x00\x00latin1q\x02" + call * times + b"t."


def test_unpickle_makes_no_more_bytes_than_the_pickle_has() -> None:
    assert unpickle_plain(encoding_again(1), "x")[-1] == b"a" * 1000
    with pytest.raises(DataError, match="more bytes than it has"):
        unpickle_plain(encoding_again(2), "x")


def test_unpickle_of_a_text_encoded_again_and_again_keeps_the_memory_small() -> None:
    bomb = encoding_again(150, b"a" * 1_000_000)
    tracemalloc.start()
    with pytest.raises(DataError, match="more bytes than it has"):
        unpickle_plain(bomb, "x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


def test_unpickle_takes_many_byte_strings_of_protocol_2() -> None:
    values = [bytes([i, j]) for i in range(256) for j in range(8)] + [b"a", b"a", b"\xff" * 500]
    assert unpickle_plain(pickle.dumps(values, protocol=2), "x") == values
