from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.unit.data.synthetic import python2_pickle, python3_pickle

from normscope.data.cifar10 import parse_records, records_of_pickle
from normscope.errors import DataError


@pytest.fixture
def records() -> np.ndarray:
    result = np.random.RandomState(3).randint(0, 256, (30, 3073)).astype(np.uint8)
    result[:, 0] %= 10
    return result


def test_parse_records_gives_one_row_per_image(records: np.ndarray) -> None:
    np.testing.assert_array_equal(parse_records(records.tobytes(), "x"), records)


@pytest.mark.parametrize("length", [0, 1, 3072, 3074])
def test_parse_records_refuses_a_wrong_length(length: int) -> None:
    with pytest.raises(DataError, match=f"some-file.*its {length} bytes are not a multiple"):
        parse_records(bytes(length), "some-file")


def test_parse_records_refuses_a_label_out_of_range(records: np.ndarray) -> None:
    records[4, 0] = 10
    with pytest.raises(DataError, match="label 10, and labels go from 0 to 9"):
        parse_records(records.tobytes(), "x")


def test_pickle_of_python2_is_really_one(records: np.ndarray) -> None:
    found = pickle.loads(python2_pickle(records), encoding="bytes")  # the trusting reader agrees
    assert found[b"labels"] == records[:, 0].tolist()
    np.testing.assert_array_equal(found[b"data"], records[:, 1:])


def test_records_of_pickle_equal_the_binary_ones(records: np.ndarray) -> None:
    raw = records.tobytes()
    assert records_of_pickle(python2_pickle(records), "x") == raw
    for protocol in range(5):
        assert records_of_pickle(python3_pickle(records, protocol), "x") == raw
    as_array = {"labels": records[:, 0].astype(np.int32), "data": records[:, 1:].copy()}
    assert records_of_pickle(pickle.dumps(as_array, protocol=4), "x") == raw


IMAGES = np.zeros((2, 3072), dtype=np.uint8)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "not a dictionary"),
        ({"labels": [1, 2]}, "'data' is not an array"),
        ({"labels": [1, 2], "data": IMAGES.tolist()}, "'data' is not an array"),
        ({"labels": [1, 2], "data": IMAGES[:, :-1].copy()}, "'data' is not an array"),
        ({"labels": [1, 2], "data": IMAGES.astype(np.int16)}, "'data' is not an array"),
        ({"data": IMAGES}, "'labels' are not one integer per image"),
        ({"labels": [1], "data": IMAGES}, "'labels' are not one"),
        ({"labels": ["a", "b"], "data": IMAGES}, "'labels' are not one"),
        ({"labels": [1.0, 2.0], "data": IMAGES}, "'labels' are not one"),
        ({"labels": [1, 2**70], "data": IMAGES}, "'labels' are not one"),
        ({"labels": [1, 10], "data": IMAGES}, "not all in 0 to 9"),
        ({"labels": [1, -1], "data": IMAGES}, "not all in 0 to 9"),
    ],
)
def test_records_of_pickle_refuse_other_content(value: object, message: str) -> None:
    with pytest.raises(DataError, match=f"some-file.*{message}"):
        records_of_pickle(pickle.dumps(value, protocol=4), "some-file")


def test_records_of_pickle_refuse_an_array_without_content() -> None:
    hollow = b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n"
    hollow += b"(cnumpy\nndarray\n(K\x00tU\x01btRu."
    with pytest.raises(DataError, match="'data' is not an array"):
        records_of_pickle(hollow, "x")
