from __future__ import annotations

import numpy as np

from normscope.data.standardize import standardized


def test_standardized_equals_the_definition_in_double_precision() -> None:
    random = np.random.RandomState(1)
    train = random.randint(0, 256, (2500, 3, 4, 5)).astype(np.uint8)  # several histogram blocks
    train[:, 1] //= 9
    test = random.randint(0, 256, (7, 3, 4, 5)).astype(np.uint8)
    mean = train.mean(axis=(0, 2, 3), keepdims=True)
    deviation = train.std(axis=(0, 2, 3), keepdims=True)
    for result, pixels in zip(standardized(train, test), (train, test), strict=True):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, (pixels - mean) / deviation, rtol=2e-7, atol=1e-7)


def test_standardized_constant_channel_is_only_centred() -> None:
    train = np.full((3, 1, 2, 2), 7, dtype=np.uint8)
    first, second = standardized(train, train + np.uint8(2))
    assert (first == 0).all()
    assert (second == 2).all()


def test_standardized_leaves_its_input_alone() -> None:
    train = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    train.setflags(write=False)
    standardized(train, train)
    assert train.ravel().tolist() == list(range(24))
