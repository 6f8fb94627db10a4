"""Atomic writes: a file is either whole or not there. Every result is written through this."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from normscope.interrupts import Undo, interrupts_wait

__all__ = ["replacing", "try_write"]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, which replaces it if the block succeeds.

    The content reaches the disk before the name does, so a crash or Ctrl-C leaves the old file or
    the new one. The temporary name keeps the suffix, by which matplotlib chooses the format. The
    new file has the permissions of the old one, and its owner where the system allows; a symbolic
    link stays, and the file that it names is replaced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "answer.txt") as unfinished:
    ...         _ = unfinished.write_text("42")
    ...     print(*(f"{found.name}: {found.read_text()}" for found in Path(folder).iterdir()))
    answer.txt: 42
    """
    path = _target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _temporary_name(path)
    remove = Undo(lambda: unfinished.unlink(missing_ok=True))
    try:
        if path.exists():
            unfinished.touch(0o600)  # the old file may be private
        yield unfinished
        with unfinished.open("rb+") as stream:
            os.fsync(stream.fileno())
        _copy_permissions(path, unfinished)
        unfinished.replace(path)
    except OSError as error:
        if error.filename in (None, str(unfinished)):  # a full disk does not say which file
            error.filename = str(path)
        raise
    finally:
        remove()


@interrupts_wait
def try_write(path: str | os.PathLike[str]) -> None:
    """Raise an `OSError` if `replacing` could not write to ``path``; nothing is left behind.

    Missing folders are tried under a temporary name in the nearest one that exists.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try_write(Path(folder) / "new" / "answer.txt")
    ...     print(list(Path(folder).iterdir()))
    []
    """
    path = _target(path).absolute()
    there = next(each for each in path.parents if each.exists())
    if there == path.parent:
        _try_file(path)
        return
    folder = there / f".{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        _try_file(folder / path.name)
    finally:
        folder.rmdir()


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the file to replace, behind symbolic links.

    Raises:
        OSError: if it is a device, a pipe or a socket, which a file must not take the place of.
    """
    found = Path(os.path.realpath(path)) if Path(path).is_symlink() else Path(path)
    if found.exists() and not (found.is_file() or found.is_dir()):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return found


def _copy_permissions(old: Path, new: Path) -> None:
    with suppress(OSError):  # there is no old file, or its file system has no permissions
        found = old.stat()
        for owner in (found.st_uid, -1):
            with suppress(OSError):  # only root may give a file away
                os.chown(new, owner, found.st_gid)
                break
        mode = found.st_mode & 0o777
        if new.stat().st_gid != found.st_gid:  # another group gets no more than everybody
            mode = mode & 0o707 | (mode & 0o007) << 3 & mode
        new.chmod(mode)


def _try_file(path: Path) -> None:
    unfinished = _temporary_name(path)
    unfinished.open("xb").close()
    unfinished.unlink()


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.stem}-{uuid.uuid4().hex}{path.suffix}")
