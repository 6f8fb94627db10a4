"""Files that vanish while they are open, and logs that a killed process left."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from normscope.errors import NormscopeWarning, StateError
from normscope.results import State, Store


def result() -> xr.Dataset:
    return xr.Dataset({"loss": ("step", np.arange(200.0))})


def delete(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved.sqlite"))


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.sqlite"))
    path.with_name("copy.sqlite").replace(path)


def delete_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


GONE = [delete, move, replace, delete_log]


@pytest.mark.parametrize("change", GONE)
def test_writer_raises_before_more_work_is_lost(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "runs.sqlite"
    runs = []
    with Store(path) as store:
        store.compute("demo", {}, 0, result)
        change(path)
        with pytest.raises(StateError, match=r"was deleted, moved or replaced .* run again"):
            store.compute("demo", {}, 1, lambda: runs.append(1) or result())  # type: ignore[func-returns-value]
        with pytest.raises(StateError, match="was deleted, moved or replaced"):
            store.add("demo", {}, 2)
    assert runs == []  # the training does not even start


def test_file_that_vanishes_during_a_training_is_told_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"

    def training() -> xr.Dataset:
        path.unlink()
        return result()

    with Store(path) as store, pytest.raises(StateError, match="was deleted, moved or replaced"):
        store.compute("demo", {}, 0, training)


@pytest.mark.parametrize("change", [delete, move, replace])
def test_reader_raises_too(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "runs.sqlite"
    with Store(path) as store:
        store.compute("demo", {}, 0, result)
    with Store(path, read_only=True) as store:
        assert len(store.select()) == 1
        change(path)
        with pytest.raises(StateError, match="was deleted, moved or replaced"):
            store.select()


def test_moved_file_that_is_put_back_has_what_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with Store(path) as store:
        store.compute("demo", {}, 0, result)
        move(path)
        with pytest.raises(StateError, match="put it back"):
            store.add("demo", {}, 1)
    (tmp_path / "moved.sqlite").rename(path)
    with Store(path, read_only=True) as store:
        assert store.select()[0].dataset.identical(result())


def test_change_of_the_folder_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store("runs.sqlite") as store:
        store.compute("demo", {}, 0, result)
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        store.compute("demo", {}, 1, result)
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["runs.sqlite"]


KILLED = """
import os, sys
import numpy as np, xarray as xr
from normscope.results import Store

store = Store(sys.argv[1])
dataset = xr.Dataset({"loss": ("step", np.arange(200.0))})
for seed in range(20):
    store.compute("demo", {}, seed, lambda: dataset)
os.kill(os.getpid(), 9)
"""
FRAME = 24 + 4096


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that a killed process left, all of it in the log."""
    folder = tmp_path_factory.mktemp("killed")
    with Store(folder / "runs.sqlite"):
        pass  # so that the tables are in the file
    subprocess.run([sys.executable, "-c", KILLED, folder / "runs.sqlite"], check=False)
    assert (folder / "runs.sqlite-wal").stat().st_size > 100 * FRAME
    return folder


def flip(position: int) -> Callable[[bytes], bytes]:
    def change(log: bytes) -> bytes:
        at = position % len(log)
        return log[:at] + bytes([log[at] ^ 4]) + log[at + 1 :]

    return change


def finished(path: Path, read_only: bool) -> int:
    with Store(path, read_only=read_only) as store:
        return store.counts()[State.FINISHED]


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("with_index", [True, False])
def test_whole_log_is_recovered_without_a_warning(
    killed: Path, tmp_path: Path, read_only: bool, with_index: bool
) -> None:
    path = shutil.copytree(killed, tmp_path / "copy") / "runs.sqlite"
    if not with_index:
        path.with_name("runs.sqlite-shm").unlink()
    assert finished(path, read_only) == 20


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a page in the middle": flip(32 + 60 * FRAME + 100),
    "the last page": flip(-10),
    "the salt of the last frame": flip(-4096 - 10),
    "the header": flip(3),
    "the salt of the header": flip(17),
}


MISSING = r"was not closed by its last writer, and (\d+) records? that it had written are missing"


def missing(caught: list[warnings.WarningMessage]) -> int:
    (found,) = (re.search(MISSING, str(each.message)) for each in caught)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_log_is_told_with_the_number_of_lost_records(
    killed: Path, tmp_path: Path, damage: str, read_only: bool, with_index: bool
) -> None:
    path = shutil.copytree(killed, tmp_path / "copy") / "runs.sqlite"
    log = path.with_name("runs.sqlite-wal")
    log.write_bytes(DAMAGES[damage](log.read_bytes()))
    if not with_index:
        path.with_name("runs.sqlite-shm").unlink()
    with pytest.warns(NormscopeWarning, match=MISSING) as caught:
        found = finished(path, read_only)
    assert missing(list(caught)) == 20 - found > 0


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("length", [None, 0, 32, 32 + 100 * FRAME, 32 + 100 * FRAME + 7])
def test_log_without_its_end_is_told(
    killed: Path, tmp_path: Path, length: int | None, read_only: bool
) -> None:
    path = shutil.copytree(killed, tmp_path / "copy") / "runs.sqlite"
    log = path.with_name("runs.sqlite-wal")
    if length is None:
        log.unlink()
    else:
        os.truncate(log, length)
    with pytest.warns(NormscopeWarning, match=MISSING) as caught:
        found = finished(path, read_only)
    assert missing(list(caught)) == 20 - found > 0


def test_writer_that_was_warned_starts_a_new_count(killed: Path, tmp_path: Path) -> None:
    path = shutil.copytree(killed, tmp_path / "copy") / "runs.sqlite"
    path.with_name("runs.sqlite-wal").unlink()
    with pytest.warns(NormscopeWarning, match=MISSING), Store(path) as store:
        store.compute("demo", {}, 0, result)
    assert finished(path, read_only=True) == 1
    assert finished(path, read_only=False) == 1


def test_only_what_was_committed_is_missed(tmp_path: Path) -> None:
    """A transaction that is rolled back, and records that exist already, count for nothing."""
    path = tmp_path / "runs.sqlite"
    with Store(path) as store:
        store.compute("demo", {}, 0, result)
        store.add("demo", {}, 0)
        with contextlib.suppress(ZeroDivisionError), store.transaction():
            store.add("demo", {}, 1)
            raise ZeroDivisionError
        crashed = tmp_path / "crashed"
        crashed.mkdir()
        files = [each for each in tmp_path.iterdir() if each.is_file()]
        assert path.with_name("runs.sqlite-lock") in files
        subprocess.run(["cp", *files, crashed], check=True)  # to open them here would drop locks
    assert finished(crashed / path.name, read_only=True) == 1


def test_readers_beside_a_writer_never_warn(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with Store(path) as store:
        for seed in range(30):
            store.compute("demo", {}, seed, result)
            assert finished(path, read_only=True) == seed + 1


READER = """
import sys, warnings
from normscope.results import Store

warnings.simplefilter("error")
for _ in range(200):
    with Store(sys.argv[1], read_only=True) as store:
        store.counts()
"""


def test_readers_in_other_processes_never_warn_and_never_harm_the_writer(tmp_path: Path) -> None:
    """Closing a file drops this process's locks on it: none of SQLite's may be opened."""
    path = tmp_path / "runs.sqlite"
    with Store(path) as store:
        store.compute("demo", {}, 0, result)
        with subprocess.Popen([sys.executable, "-c", READER, path]) as reader:
            seed = 0
            while reader.poll() is None:
                seed += 1
                store.compute("demo", {}, seed, result)
                assert finished(path, read_only=True) == seed + 1  # a reader in this process too
        assert reader.returncode == 0
    assert finished(path, read_only=True) == seed + 1
