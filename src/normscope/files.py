"""Atomic writes: a file is either whole or not there. Every result is written through this."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing", "try_write"]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, which replaces it if the block succeeds.

    The content reaches the disk before the name does, so a crash or Ctrl-C leaves the old file or
    the new one. The temporary name keeps the suffix, by which matplotlib chooses the format.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "answer.txt") as unfinished:
    ...         _ = unfinished.write_text("42")
    ...     print(*(f"{found.name}: {found.read_text()}" for found in Path(folder).iterdir()))
    answer.txt: 42
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _temporary_name(path)
    try:
        yield unfinished
        with unfinished.open("rb+") as stream:
            os.fsync(stream.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def try_write(path: str | os.PathLike[str]) -> None:
    """Raise an `OSError` if `replacing` could not write to ``path``; nothing is left behind.

    Missing folders are tried under a temporary name in the nearest one that exists.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try_write(Path(folder) / "new" / "answer.txt")
    ...     print(list(Path(folder).iterdir()))
    []
    """
    path = Path(path).absolute()
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


def _try_file(path: Path) -> None:
    unfinished = _temporary_name(path)
    unfinished.open("xb").close()
    unfinished.unlink()


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.stem}-{uuid.uuid4().hex}{path.suffix}")
