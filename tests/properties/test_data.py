"""Whatever bytes come, the readers of data files give the exact content or one DataError."""

from __future__ import annotations

import contextlib
import pickle

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.unit.data.synthetic import idx

from normscope.data.cifar10 import records_of_pickle, unpickle_plain
from normscope.data.images import standardize
from normscope.data.mnist import parse_idx
from normscope.errors import DataError

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(min_size=1),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)
BYTES = arrays.arrays(np.uint8, arrays.array_shapes(min_dims=4, max_dims=4, max_side=5))


@settings(deadline=None)
@given(array=arrays.arrays(np.uint8, arrays.array_shapes(min_dims=1, max_dims=4)))
def test_idx_round_trip_is_exact(array: np.ndarray) -> None:
    np.testing.assert_array_equal(parse_idx(idx(array), array.ndim, "x"), array)


@settings(deadline=None)
@given(
    array=arrays.arrays(np.uint8, (3, 2)), position=st.integers(0, 11), value=st.integers(0, 255)
)
def test_idx_header_cannot_be_changed_unnoticed(
    array: np.ndarray, position: int, value: int
) -> None:
    raw = bytearray(idx(array))
    if raw[position] == value:
        return
    raw[position] = value
    try:
        found = parse_idx(bytes(raw), 2, "x")
    except DataError:
        return
    raise AssertionError(f"read as {found.shape}")


@settings(deadline=None)
@given(value=PLAIN, protocol=st.integers(0, 4))
def test_plain_values_survive_the_restricted_unpickler(value: object, protocol: int) -> None:
    assert unpickle_plain(pickle.dumps(value, protocol=protocol), "x") == value


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=200))
def test_random_bytes_never_escape_the_unpickler_as_another_error(raw: bytes) -> None:
    with contextlib.suppress(DataError):
        unpickle_plain(b"\x80\x02" + raw, "x")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_changed_bytes_of_a_batch_never_escape_as_another_error(data: st.DataObject) -> None:
    batch = {"labels": [1, 2], "data": np.zeros((2, 3072), dtype=np.uint8)}
    raw = bytearray(pickle.dumps(batch, protocol=2))
    for _ in range(data.draw(st.integers(1, 4))):
        near_an_end = st.integers(0, 200) | st.integers(len(raw) - 200, len(raw) - 1)
        raw[data.draw(near_an_end)] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        assert len(records_of_pickle(bytes(raw), "x")) % 3073 == 0


@settings(deadline=None)
@given(train=BYTES)
def test_standardised_training_split_has_mean_0_and_variance_1(train: np.ndarray) -> None:
    result = torch.from_numpy(standardize(train, train)[0]).double()
    for channel in range(train.shape[1]):
        values = result[:, channel]
        assert abs(values.mean()) < 1e-4
        constant = len(np.unique(train[:, channel])) == 1
        assert abs(values.var(unbiased=False) - (0 if constant else 1)) < 1e-4
