from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from tests.unit.data.synthetic import BATCHES, CIFAR10_FORMS, SmallData, idx

import normscope as ns
from normscope.errors import DataError, UnknownNameError
from normscope.progress import Progress


def test_inventory_tells_what_is_present(small: SmallData, tmp_path: Path) -> None:
    folder = small.write_mnist(tmp_path / "mnist")
    found = {status.name: status for status in ns.data.inventory(tmp_path)}
    assert {name: status.present for name, status in found.items()} == {
        "cifar10": False,
        "digits": True,
        "gaussian": True,
        "mnist": True,
    }
    assert found["mnist"].where == folder
    assert "28 x 28" in found["mnist"].what


def test_inventory_reports_a_problem_instead_of_failing(small: SmallData, tmp_path: Path) -> None:
    folder = small.write_mnist(tmp_path)
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    found = {status.name: status for status in ns.data.inventory(tmp_path)}
    assert not found["mnist"].present
    assert "lacks t10k-labels-idx1-ubyte" in found["mnist"].problem


def test_path_of_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mnist'"):
        ns.data.path("mnits")


def test_verify_passes_sound_mnist_files(small: SmallData, tmp_path: Path) -> None:
    small.write_mnist(tmp_path)
    events: list[Progress] = []
    checks = ns.data.verify("mnist", tmp_path, progress=events.append)
    assert [check.part for check in checks] == list(small.mnist)
    assert [event.stage for event in events] == list(small.mnist)
    assert [(event.done, event.total) for event in events] == [(n, 4) for n in range(4)]
    assert all(check.ok for check in checks)


@pytest.mark.parametrize("form", CIFAR10_FORMS)
def test_verify_passes_sound_cifar10_files(small: SmallData, tmp_path: Path, form: str) -> None:
    small.write_cifar10(tmp_path, form)
    checks = ns.data.verify("cifar10", tmp_path)
    assert [check.part for check in checks] == BATCHES
    assert all(check.ok for check in checks)


def test_verify_names_every_bad_file_and_passes_the_others(
    small: SmallData, tmp_path: Path
) -> None:
    small.write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(40))))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(b"garbage")
    checks = ns.data.verify("mnist", tmp_path)
    assert [check.ok for check in checks] == [True, False, False, True]
    assert "official content" in checks[1].message
    assert "damaged" in checks[2].message


def test_verify_reads_the_files_even_if_their_arrays_are_cached(
    small: SmallData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.write_mnist(tmp_path)
    ns.data.load("mnist", root=tmp_path)
    monkeypatch.setattr("normscope.data.content.read_file", lambda path, limit: b"")
    assert not any(check.ok for check in ns.data.verify("mnist", tmp_path))


def test_verify_reports_a_broken_archive_once(small: SmallData, tmp_path: Path) -> None:
    small.write_cifar10(tmp_path, "binary tar")
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(path.read_bytes()[:5000])
    (check,) = ns.data.verify("cifar10", tmp_path)
    assert not check.ok
    assert check.file == path


def test_verify_of_missing_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="get it with: normscope data fetch mnist"):
        ns.data.verify("mnist", tmp_path)


def test_verify_of_embedded_data_has_nothing_to_check() -> None:
    assert ns.data.verify("digits") == []


def test_missing_files_of_a_root_are_to_be_fetched_into_it(tmp_path: Path) -> None:
    root = tmp_path / "two words"
    root.mkdir()
    with pytest.raises(DataError, match=rf"data fetch mnist --root '{root}'$"):
        ns.data.verify("mnist", root)
    with pytest.raises(DataError, match=r"data fetch mnist$"):
        ns.data.verify("mnist")
