"""One writer for each file: an operating-system lock that ends with the process.

The lock is on a separate file beside the store, since closing any handle of a file drops all POSIX
locks that the process holds on it. These locks, unlike flock's, are not inherited by forked
children: a worker that outlives its killed parent does not keep the store locked.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path

from normscope.errors import StateError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

FileId = tuple[int, int, int]  # process, device and inode

_held: set[FileId] = set()  # the locks of this process
_guard = threading.Lock()


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
        with _guard:
            self._handle, self._file = self._acquire(path)
        self._finalizer = weakref.finalize(self, _release, self.path, self._handle, self._file)

    def _acquire(self, path: Path) -> tuple[int, FileId]:
        while True:
            if self.path.exists() and _file_id(self.path.stat()) in _held:
                raise _locked_error(path, os.getpid())
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                raise StateError(
                    f"{path.parent} cannot be written ({error.strerror}); choose another folder, "
                    "or open the store with read_only=True."
                ) from error
            if not _lock(handle):
                owner = _owner(handle)
                os.close(handle)
                raise _locked_error(path, owner)
            file = _file_id(os.fstat(handle))
            # the previous writer may have removed the file between our opening and locking it
            if self.path.exists() and _file_id(self.path.stat()) == file:
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                _held.add(file)
                return handle, file
            os.close(handle)

    def release(self) -> None:
        """Release the lock; may be called more than once."""
        self._finalizer()


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Return whether a process has a store open for writing.

    Args:
        path: of the store.
    """
    resolved = Path(path).resolve()
    if not _lock_file(resolved).exists():
        return False  # checked first, so that a read-only folder stays as it is
    try:
        WriterLock(resolved).release()
    except LockedError:
        return True
    except StateError:
        return False
    return False


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


def _owner(handle: int) -> int | None:
    text = os.read(handle, 20)
    return int(text) if text.isdigit() else None


def _locked_error(path: Path, owner: int | None) -> LockedError:
    who = "another process" if owner is None else f"process {owner}"
    if owner == os.getpid():
        who = f"this process ({owner})"
    return LockedError(
        f"{path} is open for writing in {who}, and a store has one writer; close it there, or open "
        "it here with read_only=True."
    )
