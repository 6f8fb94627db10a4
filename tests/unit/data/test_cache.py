from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.data.synthetic import SmallData, idx

import normscope as ns
from normscope.data import images
from normscope.errors import DataError, NormscopeWarning


@pytest.fixture
def root(small: SmallData, tmp_path: Path) -> Path:
    return small.write_mnist(tmp_path / "data", packed=False)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One item per time the source files are really read."""
    calls: list[bool] = []
    really_read = images.read_parts

    def read(*arguments: object) -> object:
        calls.append(True)
        return really_read(*arguments)

    monkeypatch.setattr(images, "read_parts", read)
    return calls


def entries(own_cache: Path) -> list[Path]:
    return sorted((own_cache / "arrays").iterdir())


def test_second_load_is_mapped_from_the_cache(
    root: Path, own_cache: Path, reads: list[bool]
) -> None:
    first, second = ns.data.load("mnist", root=root), ns.data.load("mnist", root=root)
    assert len(reads) == 1
    for one, other in zip((*first.train, *first.test), (*second.train, *second.test), strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
    (entry,) = entries(own_cache)
    fingerprint = json.loads((entry / "fingerprint.json").read_text())
    assert fingerprint["key"]["verified"] is True
    assert fingerprint["key"]["sources"][0]["path"] == str(root / "train-images-idx3-ubyte")
    assert len(fingerprint["content"]["t10k-labels-idx1-ubyte"]) == 64


def test_changed_source_is_read_again_and_its_old_entry_removed(
    root: Path, own_cache: Path, small: SmallData, reads: list[bool]
) -> None:
    ns.data.load("mnist", root=root, verify=False)
    (before,) = entries(own_cache)
    (root / "t10k-labels-idx1-ubyte").write_bytes(idx(np.full(20, 3)))
    data = ns.data.load("mnist", root=root, verify=False)
    assert data.test.y.tolist() == [3] * 20
    assert len(reads) == 2
    (after,) = entries(own_cache)
    assert after != before
    with pytest.raises(DataError, match="official content"):
        ns.data.load("mnist", root=root)


def test_swap_that_keeps_size_and_modification_time_is_noticed(
    root: Path, reads: list[bool]
) -> None:
    ns.data.load("mnist", root=root)
    path = root / "t10k-labels-idx1-ubyte"
    stat = path.stat()
    path.write_bytes(idx(np.full(20, 3)))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(DataError, match="official content"):
        ns.data.load("mnist", root=root)
    assert len(reads) == 2


def test_unverified_entry_never_serves_a_verified_load(root: Path, reads: list[bool]) -> None:
    ns.data.load("mnist", root=root, verify=False)
    ns.data.load("mnist", root=root)
    assert len(reads) == 2
    ns.data.load("mnist", root=root, verify=False)  # the verified one serves both
    assert len(reads) == 2


@pytest.mark.parametrize("damage", ["truncate", "change", "delete", "garble", "empty", "retype"])
def test_damaged_entry_is_made_anew(
    root: Path, own_cache: Path, reads: list[bool], damage: str
) -> None:
    expected = ns.data.load("mnist", root=root).train.x.clone()
    (entry,) = entries(own_cache)
    array, fingerprint = entry / "train_x.npy", entry / "fingerprint.json"
    if damage == "truncate":
        os.truncate(array, array.stat().st_size - 4)
    elif damage == "change":
        content = bytearray(array.read_bytes())
        content[-1] ^= 255
        array.write_bytes(content)
    elif damage == "delete":
        array.unlink()
    elif damage == "garble":
        fingerprint.write_text("{")
    elif damage == "empty":
        fingerprint.write_text("[]")
    else:
        np.save(entry / "train_x.npy", np.zeros(3))
        record = json.loads(fingerprint.read_text())
        record["arrays"] = images._array_states(entry)
        fingerprint.write_text(json.dumps(record))
    assert torch.equal(ns.data.load("mnist", root=root).train.x, expected)
    assert len(reads) == 2
    ns.data.load("mnist", root=root)
    assert len(reads) == 2
    assert len(entries(own_cache)) == 1


def test_new_format_version_makes_old_entries_stale(
    root: Path, own_cache: Path, reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    ns.data.load("mnist", root=root)
    key_of = images.Key.of
    monkeypatch.setattr(
        images.Key, "of", lambda *given, **named: replace(key_of(*given, **named), format=-1)
    )
    ns.data.load("mnist", root=root)
    assert len(reads) == 2
    assert len(entries(own_cache)) == 1


def fail_to_save(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(file: object, array: np.ndarray, **options: object) -> None:
        file.write(array.tobytes()[:100])  # type: ignore[attr-defined]
        raise error

    monkeypatch.setattr(images.np, "save", save)


def test_full_disk_warns_once_and_leaves_nothing(
    root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_save(OSError(errno.ENOSPC, "No space left on device"), monkeypatch)
    with pytest.warns(NormscopeWarning, match="cannot be cached in .*No space left"):
        data = ns.data.load("mnist", root=root)
    assert data.train.x.shape == (40, 1, 28, 28)
    assert entries(own_cache) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ns.data.load("mnist", root=root)


def test_cache_folder_that_cannot_be_made_is_done_without(root: Path, own_cache: Path) -> None:
    own_cache.parent.mkdir(parents=True)
    own_cache.write_text("a file in the way")
    with pytest.warns(NormscopeWarning, match="cannot be cached"):
        data = ns.data.load("mnist", root=root)
    assert data.train.x.shape == (40, 1, 28, 28)
    assert own_cache.read_text() == "a file in the way"


def test_interruption_while_writing_leaves_nothing(
    root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_save(KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        ns.data.load("mnist", root=root)
    assert entries(own_cache) == []


def test_leftovers_of_killed_processes_are_removed_after_a_day(root: Path, own_cache: Path) -> None:
    old, new = (own_cache / "arrays" / f".partial-{name}" for name in ("old", "new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (time.time() - 2 * 24 * 3600,) * 2)
    ns.data.load("mnist", root=root)
    assert not old.exists()
    assert new.exists()


def test_entry_made_meanwhile_by_another_process_is_used(
    root: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_read = images.read_parts

    def read_while_another_loads(*arguments: object) -> object:
        monkeypatch.setattr(images, "read_parts", really_read)
        ns.data.load("mnist", root=root)
        return really_read(*arguments)

    monkeypatch.setattr(images, "read_parts", read_while_another_loads)
    assert ns.data.load("mnist", root=root).train.x.shape == (40, 1, 28, 28)
    assert len(entries(own_cache)) == 1


def test_concurrent_processes_agree(tmp_path: Path, own_cache: Path) -> None:
    root = SmallData().write_mnist(tmp_path / "data")
    program = (
        "import sys, normscope as ns\n"
        "for _ in range(5):\n"
        "    data = ns.data.load('mnist', root=sys.argv[1], verify=False)\n"
        "    assert data.train.x.shape == (40, 1, 28, 28)\n"
        "print(data.train.x.double().pow(3).sum().item())\n"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(root)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert len(printed) == 1
    assert len(entries(own_cache)) == 1
