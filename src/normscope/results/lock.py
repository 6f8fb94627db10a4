"""One writer for each file: an operating-system lock that ends with the process.

The lock is on a separate file beside the store, since closing any handle of a file drops all POSIX
locks that the process holds on it. (For the same reason no file of SQLite's is opened here.) These
locks, unlike flock's, are not inherited by forked children: a worker that outlives its killed
parent does not keep the store locked.

The file holds the writer's process and what it has written so far. A writer that ends removes it; a
killed one leaves it, and who opens the store next can tell whether something of that is missing.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from normscope.errors import StateError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_CAN_ASK = sys.platform == "linux"
_FLOCK = "hhqqi0q"  # struct flock of 64-bit Linux: type, whence, start, length, process

FileId = tuple[int, int, int]  # process, device and inode

_held: set[FileId] = set()  # the locks of this process
_guard = threading.Lock()


class Written(NamedTuple):
    """How much a store holds.

    Args:
        records: in any state.
        results: records that are finished or diverged.
    """

    records: int
    results: int


class LockedError(StateError):
    """Another writer holds the lock."""


class WriterLock:
    """The right to write a store, held until released or until the process ends.

    Args:
        path: of the store.

    Raises:
        StateError: if another writer holds it, or the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = _lock_file(path)
        self.left: Written | None = None  # by a writer that was killed
        with _guard:
            self._handle, self._file = self._acquire(path)
        self._finalizer = weakref.finalize(self, _release, self.path, self._handle, self._file)

    def _acquire(self, path: Path) -> tuple[int, FileId]:
        while True:
            if _is_held(self.path):
                raise _locked_error(path, os.getpid())
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                raise StateError(
                    f"{path.parent} cannot be written ({error.strerror}); choose another folder, "
                    "or open the store with read_only=True."
                ) from error
            if not _lock(handle):
                owner, _ = _read(handle)
                os.close(handle)
                raise _locked_error(path, owner)
            file = _file_id(os.fstat(handle))
            # the previous writer may have removed the file between our opening and locking it
            if self.path.exists() and _file_id(self.path.stat()) == file:
                self.left = _read(handle)[1]
                os.ftruncate(handle, 0)
                _write(handle, str(os.getpid()))
                _held.add(file)
                return handle, file
            os.close(handle)

    def note(self, written: Written) -> None:
        """Keep how much was written, for whoever opens the store after a crash."""
        _write(self._handle, f"{os.getpid()} {written.records:19} {written.results:19}")

    def release(self) -> None:
        """Release the lock; may be called more than once."""
        self._finalizer()


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Return whether a process has a store open for writing.

    Args:
        path: of the store.
    """
    file = _lock_file(Path(path).resolve())
    with _guard:
        if _is_held(file):
            return True
        try:
            handle = os.open(file, os.O_RDONLY if _CAN_ASK else os.O_RDWR)
        except OSError:  # there is none, or it cannot be locked from here
            return False
        try:
            return _is_taken(handle)
        finally:
            os.close(handle)


def left_by_writer(path: Path) -> Written | None:
    """Return how much the last writer of a store, which may be at work or killed, has written.

    Args:
        path: of the store.

    Returns:
        What the store holds at least; None if that is not known.
    """
    file = _lock_file(path)
    with _guard:
        if _is_held(file):
            return None
        try:
            handle = os.open(file, os.O_RDONLY)
        except OSError:
            return None
        try:
            return _read(handle)[1]
        finally:
            os.close(handle)


def _is_held(file: Path) -> bool:
    """Return whether this process holds the lock: to open and close the file would drop it."""
    return file.exists() and _file_id(file.stat()) in _held


def _lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name}-lock")


def _release(path: Path, handle: int, file: FileId) -> None:
    with _guard:
        if file[0] == os.getpid():  # a forked child must leave its parent's file alone
            with suppress(OSError):
                path.unlink()
            _held.discard(file)
        os.close(handle)


def _file_id(status: os.stat_result) -> FileId:
    return os.getpid(), status.st_dev, status.st_ino


def _lock(handle: int) -> bool:
    try:
        if sys.platform == "win32":
            os.lseek(handle, 1 << 20, os.SEEK_SET)  # beyond the process number
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_taken(handle: int) -> bool:
    """Return whether another process holds the lock.

    Linux can be asked without taking it, so that a writer that starts at this moment gets it.
    """
    if sys.platform != "linux":
        return not _lock(handle)
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    (kind, *_) = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, wanted))
    return bool(kind != fcntl.F_UNLCK)


def _read(handle: int) -> tuple[int | None, Written | None]:
    """Return the process in a lock file, and what it has written; None for what is not there."""
    os.lseek(handle, 0, os.SEEK_SET)
    words = [int(word) for word in os.read(handle, 100).split() if word.isdigit()]
    return (words[0] if words else None), (Written(*words[1:]) if len(words) == 3 else None)


def _write(handle: int, text: str) -> None:
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, text.encode())


def _locked_error(path: Path, owner: int | None) -> LockedError:
    who = "another process" if owner is None else f"process {owner}"
    if owner == os.getpid():
        who = f"this process ({owner})"
    return LockedError(
        f"{path} is open for writing in {who}, and a store has one writer; close it there, or open "
        "it here with read_only=True."
    )
