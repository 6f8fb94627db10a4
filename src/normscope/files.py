"""Files that are either whole or not there: every result is written through this module."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside ``path`` to write to; it takes the place of ``path`` when the block ends well.

    The content reaches the disk before the name does, so a crash or Ctrl-C leaves the old file or
    the new one, never half of one. The temporary name keeps the suffix of ``path``, because
    writers such as matplotlib choose their format by it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "answer.txt") as unfinished:
    ...         _ = unfinished.write_text("42")
    ...     print(*(f"{found.name}: {found.read_text()}" for found in Path(folder).iterdir()))
    answer.txt: 42
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _beside(path)
    try:
        yield unfinished
        with unfinished.open("rb+") as stream:
            os.fsync(stream.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def try_place(path: str | os.PathLike[str]) -> None:
    """Fail as `replacing` would if nothing can be written at ``path``; nothing is left behind.

    Folders that are not there are tried under another name in the one that is, so that nobody sees
    them come and go.

    Args:
        path: where a file is to go.

    Raises:
        OSError: if it cannot go there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try_place(Path(folder) / "new" / "answer.txt")
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
    unfinished = _beside(path)
    unfinished.open("xb").close()
    unfinished.unlink()


def _beside(path: Path) -> Path:
    """The name under which a file is written until it is whole."""
    return path.with_name(f".{path.stem}-{uuid.uuid4().hex}{path.suffix}")
