"""A store that is followed: every change once, whatever another process does to the file."""

import sqlite3
import subprocess
import sys

import pytest
import xarray as xr

from normscope.errors import DataError, StateError
from normscope.results import State, Store
from normscope.results.following import Following
from normscope.results.lock import is_locked


def chunk(*steps):
    return xr.Dataset({"loss": ("step", [1.0 / (1 + step) for step in steps])}, {"step": [*steps]})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


def test_changes_are_returned_once_and_only_what_changed(path):
    with Store(path) as store:
        keys = [store.add("e", {"n": n}, 0) for n in range(5)]
        following = Following(path)
        assert [row.key for row in following.changes()] == keys
        assert following.changes() == []
        store.start(keys[1])
        (row,) = following.changes()
        assert (row.key, row.state, row.attempts) == (keys[1], State.RUNNING, 1)
        assert following.starts([row]).keys() == {row.id}
        store.finish(keys[1], chunk(0, 1))
        late = store.add("e", {"n": 9}, 0)
        assert {row.key: row.state for row in following.changes()} == {
            keys[1]: "finished",
            late: "pending",
        }
        following.close()


def test_another_attempt_in_the_same_state_is_a_change(path):
    with Store(path) as store:
        keys = [store.add("e", {"n": n}, 0) for n in range(2)]
        for key in keys:
            store.start(key)
            store.fail(key, "no memory")
        following = Following(path)
        assert len(following.changes()) == 2
        store.start(keys[1])
        store.fail(keys[1], "no disk")
        (row,) = following.changes()
        assert (row.key, row.error, row.attempts) == (keys[1], "no disk", 2)
        assert following.changes() == []
        following.close()


def test_many_changes_come_in_portions(path):
    with Store(path) as store:
        with store.transaction():
            keys = [store.add("e", {"n": n}, 0) for n in range(25)]
        following = Following(path)
        sizes = []
        found = []
        while rows := following.changes(most=10):
            sizes.append(len(rows))
            found += [row.key for row in rows]
        following.close()
    assert sizes == [10, 10, 5]
    assert sorted(found) == sorted(keys)
    assert following.known == 25


def test_chunks_are_read_from_the_first_new_one(path):
    with Store(path) as store:
        key = store.add("e", {}, 0)
        store.start(key)
        store.append(key, chunk(0))
        following = Following(path)
        (row,) = following.changes()
        assert [each.variables["step"].values.tolist() for each in following.chunks(row)] == [[0]]
        store.append(key, chunk(1))
        store.append(key, chunk(2, 3))
        later = following.chunks(row, first=1)
        assert [each.variables["step"].values.tolist() for each in later] == [[1], [2, 3]]
        store.finish(key)
        assert following.chunks(row, first=3) == []  # the result is another content
        (row,) = following.changes()
        (whole,) = following.chunks(row)
        assert whole.variables["step"].values.tolist() == [0, 1, 2, 3]
        following.close()


def test_a_replaced_or_deleted_file_raises_and_can_be_opened_anew(path):
    with Store(path) as store:
        store.add("e", {}, 0)
    following = Following(path)
    assert len(following.changes()) == 1
    path.unlink()
    with pytest.raises(StateError, match="deleted, moved or replaced"):
        following.changes()
    following.close()
    with pytest.raises(DataError, match="no store"):
        Following(path)
    with Store(path) as store:
        store.add("other", {}, 0)
    following = Following(path)
    assert [row.identity.experiment for row in following.changes()] == ["other"]
    following.close()


def test_a_locked_file_raises_soon(path, monkeypatch):
    monkeypatch.setattr("normscope.results.following._TIMEOUT", 0.05)
    with Store(path) as store:
        store.add("e", {}, 0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StateError, match="locked by another program"):
        Following(path).changes()
    other.close()
    following = Following(path)
    assert len(following.changes()) == 1
    following.close()


def test_a_reader_leaves_the_writer_and_the_file_alone(path):
    with Store(path) as store:
        key = store.add("e", {}, 0)
        store.start(key)
        following = Following(path)
        following.changes()
        store.finish(key, chunk(0))  # while the reader is open
        following.changes()
        following.close()
        store.add("e", {"n": 1}, 0)
    before = path.read_bytes()
    following = Following(path)
    following.changes()
    following.close()
    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["runs.db"]


LOCKED = """
import sys
from normscope.results.lock import WriterLock
from pathlib import Path
lock = WriterLock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.readline()
"""


def test_asking_for_a_lock_does_not_take_it(path):
    assert not is_locked(path)
    command = [sys.executable, "-c", LOCKED, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "locked\n"
        assert is_locked(path)
        run.kill()  # leaves its file, without a lock
        run.wait()
        assert path.with_name("runs.db-lock").exists()
        assert not is_locked(path)
