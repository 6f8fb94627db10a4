"""One writer for each file: a lock of the operating system, which ends with the process.

The lock lies on a file of its own beside the store, since closing any handle of a file drops all
POSIX locks that the process holds on it. These locks, unlike flock's, are not inherited by forked
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

__all__ = ["WriterLock"]

_held: set[tuple[int, int, int]] = set()  # process, device and inode of the locks held here
_guard = threading.Lock()


class WriterLock:
    """The right to write a store, held until released or until the process ends.

    Args:
        path: of the store.

    Raises:
        StateError: if another writer holds it, or the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name}-lock")
        with _guard:
            self._handle, self._place = self._acquire(path)
        self._finalizer = weakref.finalize(self, _release, self.path, self._handle, self._place)

    def _acquire(self, path: Path) -> tuple[int, tuple[int, int, int]]:
        while True:
            if self.path.exists() and _place(self.path.stat()) in _held:
                raise _taken(path, os.getpid())
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
                raise _taken(path, owner)
            place = _place(os.fstat(handle))
            # the writer before us may have removed the file between our opening and locking it
            if self.path.exists() and _place(self.path.stat()) == place:
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode())
                _held.add(place)
                return handle, place
            os.close(handle)

    def release(self) -> None:
        """Give the right back; more than once does no harm."""
        self._finalizer()


def _release(path: Path, handle: int, place: tuple[int, int, int]) -> None:
    with _guard:
        if place[0] == os.getpid():  # a forked child must leave its parent's file alone
            with suppress(OSError):
                path.unlink()
            _held.discard(place)
        os.close(handle)


def _place(status: os.stat_result) -> tuple[int, int, int]:
    return os.getpid(), status.st_dev, status.st_ino


def _lock(handle: int) -> bool:
    try:
        if sys.platform == "win32":
            os.lseek(handle, 1 << 20, os.SEEK_SET)  # beyond the text, which others may read
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


def _taken(path: Path, owner: int | None) -> StateError:
    who = "another process" if owner is None else f"process {owner}"
    if owner == os.getpid():
        who = f"this process ({owner})"
    return StateError(
        f"{path} is open for writing in {who}, and a store has one writer; close it there, or open "
        "it here with read_only=True."
    )
