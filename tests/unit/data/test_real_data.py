"""The real MNIST and CIFAR-10, where NORMSCOPE_DATA says they are."""

from __future__ import annotations

import lzma
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.data.synthetic import BATCHES, python2_pickle, python3_pickle, tar_gz

import normscope as ns
from normscope.data import Dataset
from normscope.data.collection import COLLECTIONS, find_source
from normscope.data.content import read_file
from normscope.errors import DataError

ROOT = os.environ.get("NORMSCOPE_DATA")  # before the fixture that removes it

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(not ROOT, reason="NORMSCOPE_DATA is not set"),
]

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


@pytest.fixture(autouse=True)
def _real_places(own_cache: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMSCOPE_DATA", str(ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))


def seconds_to_load(name: str) -> float:
    start = time.perf_counter()
    ns.data.load(name)
    return time.perf_counter() - start


def require_standardised(data: Dataset) -> None:
    for channel in range(data.train.x.shape[1]):
        values = data.train.x[:, channel].double()
        assert abs(values.mean()) < 1e-4
        assert abs(values.var(unbiased=False) - 1) < 1e-4


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_second_load_takes_less_than_three_tenths_of_a_second(name: str) -> None:
    first = seconds_to_load(name)
    second = min(seconds_to_load(name) for _ in range(3))
    print(f"{name}: first load {first:.3f} s, second {second:.4f} s")
    assert second < 0.3


def test_mnist_is_complete_and_standardised() -> None:
    data = ns.data.load("mnist")
    assert data.train.y.bincount().tolist() == MNIST_TRAIN
    assert data.test.y.bincount().tolist() == MNIST_TEST
    assert data.train.x.shape == (60000, 1, 28, 28)
    assert data.test.x.shape == (10000, 1, 28, 28)
    require_standardised(data)
    black = data.train.x.min().item()  # the published constants: mean 33.3184, deviation 78.5675
    assert black == pytest.approx(-33.3184 / 78.5675, abs=2e-6)


def test_cifar10_is_complete_and_standardised() -> None:
    data = ns.data.load("cifar10")
    assert data.train.y.bincount().tolist() == [5000] * 10
    assert data.test.y.bincount().tolist() == [1000] * 10
    assert data.train.x.shape == (50000, 3, 32, 32)
    require_standardised(data)
    means, deviations = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # as published
    for channel, (mean, deviation) in enumerate(zip(means, deviations, strict=True)):
        low = data.train.x[:, channel].min().item()
        assert low == pytest.approx(-mean / deviation, abs=1e-3)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_verify_passes(name: str) -> None:
    checks = ns.data.verify(name)
    assert [check.ok for check in checks] == [True] * len(ns.data.parts(name))


@pytest.fixture(scope="module")
def batches() -> dict[str, bytes]:
    ns.data.parts("cifar10")
    source = find_source(COLLECTIONS["cifar10"], ROOT)
    assert source is not None
    return {part: read_file(source.files[part], 10**8) for part in BATCHES}


def test_cifar10_images_are_the_standardised_bytes_in_order(batches: dict[str, bytes]) -> None:
    data = ns.data.load("cifar10")
    train = np.frombuffer(b"".join(batches[part] for part in BATCHES[:5]), np.uint8)
    pixels = train.reshape(-1, 3073)[:, 1:].reshape(-1, 3, 1024)
    for channel in range(3):
        mean, deviation = pixels[:, channel].mean(), pixels[:, channel].std()
        expected = (pixels[::100, channel] - mean) / deviation
        found = data.train.x[::100, channel].flatten(1).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert data.train.y.tolist() == train[::3073].tolist()


@pytest.mark.parametrize("form", ["plain", "binary tar", "python 2 pickles", "python tar"])
def test_cifar10_in_another_form_is_the_same(
    batches: dict[str, bytes], form: str, tmp_path: Path, own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    reference = ns.data.load("cifar10")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another-cache"))
    records = {
        part: np.frombuffer(raw, np.uint8).reshape(-1, 3073) for part, raw in batches.items()
    }
    if form == "plain":
        files = {f"{part}.bin": raw for part, raw in batches.items()}
    elif form == "binary tar":
        members = {f"cifar-10-batches-bin/{part}.bin": raw for part, raw in batches.items()}
        files = {"cifar-10-binary.tar.gz": tar_gz(members)}
    elif form == "python 2 pickles":
        files = {part: python2_pickle(rows) for part, rows in records.items()}
    else:
        pickles = {part: python3_pickle(rows) for part, rows in records.items()}
        members = {f"cifar-10-batches-py/{part}": raw for part, raw in pickles.items()}
        files = {"cifar-10-python.tar.gz": tar_gz(members)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    found = ns.data.load("cifar10", root=tmp_path)
    for one, other in zip(
        (*found.train, *found.test), (*reference.train, *reference.test), strict=True
    ):
        assert torch.equal(one, other)
    del found
    shutil.rmtree(tmp_path)  # a gigabyte


def test_mnist_with_one_changed_byte_is_refused(tmp_path: Path) -> None:
    source = find_source(COLLECTIONS["mnist"], ROOT)
    assert source is not None
    for part, path in source.files.items():
        raw = bytearray(read_file(path, 10**8))
        raw[-1] ^= part == "t10k-images-idx3-ubyte"
        (tmp_path / part).write_bytes(raw)
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte does not have"):
        ns.data.load("mnist", root=tmp_path)


def test_cifar10_truncated_xz_is_refused(tmp_path: Path, batches: dict[str, bytes]) -> None:
    packed = lzma.compress(batches["test_batch"][:3_073_000], preset=0)
    for part in BATCHES:
        (tmp_path / f"{part}.bin.xz").write_bytes(packed[:-1000])
    with pytest.raises(DataError, match=r"\.bin\.xz cannot be used: it is truncated"):
        ns.data.load("cifar10", root=tmp_path)
