from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.data.synthetic import BATCHES, CIFAR10_FORMS, SmallData, idx, tar_gz

import normscope as ns
from normscope.data import fetch, images, mnist
from normscope.data.collection import find_source
from normscope.data.images import standardize
from normscope.errors import DataError


def files_below(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"a download was tried: {arguments}")

    monkeypatch.setattr(fetch, "_try_mirror", refuse)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", [".", "mnist", "MNIST/raw"])
def test_mnist_loads_from_every_layout(
    small: SmallData, tmp_path: Path, folder: str, packed: bool
) -> None:
    root = tmp_path / "data"
    small.write_mnist(root / folder, packed)
    data = ns.data.load("mnist", root=root)
    raw = np.frombuffer(small.mnist["train-images-idx3-ubyte"][16:], np.uint8)
    expected = (raw - raw.mean()) / raw.std()
    np.testing.assert_allclose(data.train.x.numpy().ravel(), expected, rtol=1e-6, atol=1e-6)
    assert data.train.x.shape == (40, 1, 28, 28)
    assert data.test.x.shape == (20, 1, 28, 28)
    assert data.train.y.tolist() == [n % 10 for n in range(40)]
    assert data.train.y.dtype == torch.int64
    assert data.classes == tuple("0123456789")


@pytest.mark.parametrize("form", CIFAR10_FORMS)
def test_cifar10_loads_from_every_form(small: SmallData, tmp_path: Path, form: str) -> None:
    root = small.write_cifar10(tmp_path / "data", form)
    before = files_below(root)
    data = ns.data.load("cifar10", root=root)
    records = np.concatenate([small.records[part] for part in BATCHES[:5]])
    pixels = records[:, 1:].reshape(100, 3, 32, 32).astype(float)
    mean = pixels.mean(axis=(0, 2, 3), keepdims=True)
    deviation = pixels.std(axis=(0, 2, 3), keepdims=True)
    np.testing.assert_allclose(
        data.train.x.numpy(), (pixels - mean) / deviation, rtol=1e-6, atol=1e-6
    )
    test = small.records["test_batch"][:, 1:].reshape(20, 3, 32, 32)
    np.testing.assert_allclose(data.test.x.numpy(), (test - mean) / deviation, rtol=1e-6, atol=1e-6)
    assert data.train.y.tolist() == records[:, 0].tolist()
    assert data.classes[0] == "airplane"
    assert data.classes[9] == "truck"
    assert files_below(root) == before  # nothing is written beside the data


@pytest.mark.parametrize("form", CIFAR10_FORMS)
def test_cifar10_refuses_a_changed_pixel_in_every_form(
    small: SmallData, tmp_path: Path, form: str
) -> None:
    small.records["data_batch_3"][7, 100] ^= 1
    small.cifar10["data_batch_3"] = small.records["data_batch_3"].tobytes()
    root = small.write_cifar10(tmp_path / "data", form)
    with pytest.raises(DataError, match=r"data_batch_3.* does not have the official content"):
        ns.data.load("cifar10", root=root)
    assert ns.data.load("cifar10", root=root, verify=False).train.x.shape == (100, 3, 32, 32)
    with pytest.raises(DataError, match="official content"):  # the unverified entry does not serve
        ns.data.load("cifar10", root=root)


def test_mnist_refuses_a_changed_label_unless_told_otherwise(
    small: SmallData, tmp_path: Path
) -> None:
    small.mnist["t10k-labels-idx1-ubyte"] = idx(np.zeros(20))
    root = small.write_mnist(tmp_path / "data")
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.gz .*verify=False"):
        ns.data.load("mnist", root=root)
    assert ns.data.load("mnist", root=root, verify=False).test.y.sum() == 0


def test_mnist_variant_may_have_other_sizes(small: SmallData, tmp_path: Path) -> None:
    small.mnist["train-images-idx3-ubyte"] = idx(np.arange(40 * 6).reshape(40, 2, 3) % 256)
    small.mnist["t10k-images-idx3-ubyte"] = idx(np.arange(20 * 6).reshape(20, 2, 3) % 256)
    root = small.write_mnist(tmp_path / "data")
    assert ns.data.load("mnist", root=root, verify=False).train.x.shape == (40, 1, 2, 3)


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("train-labels-idx1-ubyte", idx(np.full(40, 10)), "label 10, and labels go from 0 to 9"),
        ("train-labels-idx1-ubyte", idx(np.zeros(39)), "40 images and 39 labels"),
        ("t10k-images-idx3-ubyte", idx(np.zeros((20, 28, 27))), "differ in size"),
        ("t10k-images-idx3-ubyte", idx(np.zeros(20)), "starts with 00000803"),
        ("t10k-labels-idx1-ubyte", b"", "this one with nothing"),
    ],
)
def test_mnist_variant_has_its_structure_checked(
    small: SmallData, tmp_path: Path, own_cache: Path, part: str, content: bytes, message: str
) -> None:
    small.mnist[part] = content
    root = small.write_mnist(tmp_path / "data")
    with pytest.raises(DataError, match=message) as caught:
        ns.data.load("mnist", root=root, verify=False)
    assert str(root) in str(caught.value)
    assert not own_cache.exists()


def test_mnist_refuses_a_truncated_file_and_leaves_nothing(
    small: SmallData, tmp_path: Path, own_cache: Path
) -> None:
    root = small.write_mnist(tmp_path / "data")
    path = root / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    before = files_below(root)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz cannot be used: it is trunc"):
        ns.data.load("mnist", root=root)
    assert files_below(root) == before
    assert not own_cache.exists()


def test_mnist_refuses_a_gzip_bomb_at_the_official_size(small: SmallData, tmp_path: Path) -> None:
    root = small.write_mnist(tmp_path / "data")
    path = root / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(bytes(50_000_000)))
    with pytest.raises(DataError, match="holds more than the 48 bytes expected"):
        ns.data.load("mnist", root=root)


def test_cifar10_refuses_an_archive_that_lacks_a_batch(small: SmallData, tmp_path: Path) -> None:
    members = {f"cifar-10-batches-bin/{part}.bin": small.cifar10[part] for part in BATCHES[:5]}
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(tar_gz(members))
    with pytest.raises(DataError, match=r"lacks the member 'cifar-10-batches-bin/test_batch.bin'"):
        ns.data.load("cifar10", root=tmp_path)


def test_cifar10_refuses_an_archive_with_a_member_outside(small: SmallData, tmp_path: Path) -> None:
    members = {f"cifar-10-batches-bin/{part}.bin": raw for part, raw in small.cifar10.items()}
    root = tmp_path / "data"
    root.mkdir()
    (root / "cifar-10-binary.tar.gz").write_bytes(tar_gz(members | {"../escaped": b"bad"}))
    with pytest.raises(DataError, match=r"'\.\./escaped' lies outside"):
        ns.data.load("cifar10", root=root)
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("form", ["pickles", "python tar"])
@pytest.mark.parametrize("verify", [True, False])
def test_cifar10_refuses_a_pickle_that_calls_something(
    small: SmallData, tmp_path: Path, own_cache: Path, form: str, verify: bool
) -> None:
    marker = tmp_path / "marker"
    program = b"\x80\x02cos\nmkdir\nX" + len(str(marker)).to_bytes(4, "little")
    hostile = program + str(marker).encode() + b"\x85R."
    names = {f"cifar-10-batches-py/{part}": hostile for part in BATCHES}
    files = names if form == "pickles" else {"cifar-10-python.tar.gz": tar_gz(names)}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"data_batch_1.*it asks for os\.mkdir"):
        ns.data.load("cifar10", root=tmp_path, verify=verify)
    assert not marker.exists()
    assert not own_cache.exists()


def test_source_that_vanishes_is_one_error(
    small: SmallData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = small.write_mnist(tmp_path)
    source = find_source(mnist.MNIST, root)
    monkeypatch.setattr(images, "find_source", lambda *arguments: source)
    (root / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.gz cannot be reached"):
        ns.data.load("mnist", root=root)


def test_cifar10_archive_member_longer_than_official_is_refused(
    small: SmallData, tmp_path: Path
) -> None:
    small.cifar10["test_batch"] += bytes(3073)
    root = small.write_cifar10(tmp_path, "binary tar")
    with pytest.raises(DataError, match=r"test_batch.bin' has more than 61460 bytes"):
        ns.data.load("cifar10", root=root)


def test_writing_to_a_tensor_does_not_reach_the_next_load(small: SmallData, tmp_path: Path) -> None:
    root = small.write_mnist(tmp_path / "data")
    first = ns.data.load("mnist", root=root)
    kept = first.train.x.clone()
    first.train.x.fill_(7)
    first.train.y.zero_()
    second = ns.data.load("mnist", root=root)
    assert torch.equal(second.train.x, kept)
    assert second.train.y.sum() > 0


def test_missing_files_in_root_are_an_error_that_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mnist is not in .*put train-images-idx3-ubyte.gz, ..."):
        ns.data.load("mnist", root=tmp_path)
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz or .*cifar-10-python.tar.gz"):
        ns.data.load("cifar10", root=tmp_path)


def test_standardize_equals_the_definition_in_double_precision() -> None:
    random = np.random.RandomState(1)
    train = random.randint(0, 256, (2500, 3, 4, 5)).astype(np.uint8)  # several histogram blocks
    train[:, 1] //= 9
    test = random.randint(0, 256, (7, 3, 4, 5)).astype(np.uint8)
    mean = train.mean(axis=(0, 2, 3), keepdims=True)
    deviation = train.std(axis=(0, 2, 3), keepdims=True)
    for result, pixels in zip(standardize(train, test), (train, test), strict=True):
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, (pixels - mean) / deviation, rtol=2e-7, atol=1e-7)


def test_standardize_constant_channel_is_only_centred() -> None:
    train = np.full((3, 1, 2, 2), 7, dtype=np.uint8)
    first, second = standardize(train, train + np.uint8(2))
    assert (first == 0).all()
    assert (second == 2).all()


def test_standardize_leaves_its_input_alone() -> None:
    train = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    train.setflags(write=False)
    standardize(train, train)
    assert train.ravel().tolist() == list(range(24))
