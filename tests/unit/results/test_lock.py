from __future__ import annotations

import os
from pathlib import Path

import pytest

from normscope.errors import StateError
from normscope.results.lock import WriterLock


def test_lock_is_for_one_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    lock = WriterLock(path)
    assert lock.path.read_text() == str(os.getpid())
    with pytest.raises(StateError, match=rf"in this process \({os.getpid()}\)"):
        WriterLock(path)
    lock.release()
    lock.release()
    assert not list(tmp_path.iterdir())
    WriterLock(path).release()


def test_file_of_a_dead_process_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "runs.sqlite-lock").write_text("999999999")
    lock = WriterLock(tmp_path / "runs.sqlite")
    assert lock.path.read_text() == str(os.getpid())
    lock.release()


def locked_in_a_child(path: Path) -> bool:
    """Whether another process finds the path locked."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            WriterLock(path)
        except StateError as error:
            os._exit(3 if f"in process {os.getppid()}," in str(error) else 4)
        except BaseException:
            os._exit(5)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 3)
    return code == 3


def test_lock_holds_against_other_processes_until_released(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    lock = WriterLock(path)
    with pytest.raises(StateError):  # nor does a refused second one drop it
        WriterLock(path)
    assert locked_in_a_child(path)
    lock.release()
    assert not locked_in_a_child(path)


def test_lock_ends_with_its_process_though_a_child_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:  # pragma: no cover
        lock = WriterLock(path)
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)  # lives until the test lets it go
        os._exit(0 if lock.path.exists() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1]) == 0
    assert path.with_name("runs.sqlite-lock").exists()
    WriterLock(path).release()
    os.write(writing, b"x")
    os.close(reading)
    os.close(writing)
