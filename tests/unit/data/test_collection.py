from __future__ import annotations

import errno
import gzip
import os
from pathlib import Path
from typing import IO

import pytest
from tests.unit.data.synthetic import SmallData

import normscope as ns
from normscope.errors import DataError


def test_root_is_the_only_place_searched(
    small: SmallData, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.write_mnist(tmp_path / "variable")
    small.write_mnist(own_cache / "data" / "mnist")
    monkeypatch.setenv("NORMSCOPE_DATA", str(tmp_path / "variable"))
    (tmp_path / "empty").mkdir()
    assert ns.data.path("mnist", tmp_path / "empty") is None
    with pytest.raises(DataError, match="mnist is not in"):
        ns.data.load("mnist", root=tmp_path / "empty")


def test_variable_comes_before_the_user_cache(
    small: SmallData, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_cache = small.write_mnist(own_cache / "data" / "mnist")
    assert ns.data.path("mnist") == in_cache
    in_variable = small.write_mnist(tmp_path / "variable")
    monkeypatch.setenv("NORMSCOPE_DATA", str(in_variable))
    assert ns.data.path("mnist") == in_variable
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("NORMSCOPE_DATA", str(tmp_path / "empty"))
    assert ns.data.path("mnist") == in_cache
    assert len(ns.data.load("mnist").train.x) == 40


def test_corrupt_file_is_not_passed_over_for_the_next_place(
    small: SmallData, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.write_mnist(own_cache / "data" / "mnist")
    folder = small.write_mnist(tmp_path / "variable")
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01"))
    monkeypatch.setenv("NORMSCOPE_DATA", str(folder))
    with pytest.raises(DataError, match=r"variable/t10k-labels-idx1-ubyte.gz cannot be used"):
        ns.data.load("mnist")


def test_incomplete_folder_is_an_error_that_names_what_is_missing(
    small: SmallData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small.write_mnist(tmp_path / "variable")
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    monkeypatch.setenv("NORMSCOPE_DATA", str(folder))
    for root in (None, folder):
        with pytest.raises(DataError, match="lacks train-labels-idx1-ubyte; add"):
            ns.data.load("mnist", root=root)


def test_complete_folder_is_preferred_to_an_incomplete_one(
    small: SmallData, tmp_path: Path
) -> None:
    small.write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    complete = small.write_mnist(tmp_path / "mnist")
    assert ns.data.path("mnist", tmp_path) == complete


def test_plain_and_packed_files_may_be_mixed(small: SmallData, tmp_path: Path) -> None:
    small.write_mnist(tmp_path, packed=False)
    part = "t10k-images-idx3-ubyte"
    (tmp_path / part).unlink()
    (tmp_path / f"{part}.gz").write_bytes(gzip.compress(small.mnist[part]))
    assert len(ns.data.load("mnist", root=tmp_path).test.x) == 20


def test_root_must_be_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for root in (file, tmp_path / "absent"):
        with pytest.raises(DataError, match="is not a folder"):
            ns.data.load("mnist", root=root)


def test_root_may_be_relative_or_in_the_home_folder(
    small: SmallData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small.write_mnist(tmp_path / "here")
    assert ns.data.path("mnist", "here") == tmp_path / "here"
    small.write_mnist(Path(os.environ["HOME"]) / "there")
    assert ns.data.path("mnist", "~/there") == Path(os.environ["HOME"]) / "there"


def test_unreadable_file_is_named(
    small: SmallData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small.write_mnist(tmp_path)
    really_open = Path.open

    def open_or_refuse(path: Path, *arguments: str) -> IO[bytes]:
        if path.name == "t10k-labels-idx1-ubyte.gz":
            raise PermissionError(errno.EACCES, "Permission denied")  # a mode would not stop root
        return really_open(path, *arguments)

    monkeypatch.setattr(Path, "open", open_or_refuse)
    with pytest.raises(DataError, match=r"ubyte.gz cannot be read \(Permission denied\)"):
        ns.data.load("mnist", root=folder)


def test_variable_must_name_a_folder(
    small: SmallData, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.write_mnist(own_cache / "data" / "mnist")
    monkeypatch.setenv("NORMSCOPE_DATA", str(tmp_path / "absent"))
    with pytest.raises(DataError, match=r"absent, named by \$NORMSCOPE_DATA, is not a folder"):
        ns.data.load("mnist")
    in_root = small.write_mnist(tmp_path / "root")
    assert ns.data.path("mnist", in_root) == in_root
    assert len(ns.data.load("digits").train.x) > 0
