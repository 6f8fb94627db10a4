"""Parsed arrays in the user cache, so that a data set is parsed and verified once.

An entry is a folder of ``.npy`` files beside ``fingerprint.json``. Its name is a digest of the
state of the source files (path, size, times), of the format version, and of whether the content
was verified; so an entry is never changed, only made anew under another name, and a look-up
costs a few ``stat`` calls. It appears by one rename of a finished folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.data.locate import user_cache
from normscope.errors import DataError, NormscopeWarning

FORMAT = 1  # raise it when the arrays of the same files would come out differently
Arrays = dict[str, NDArray[Any]]

_DTYPES = {"train_x": np.float32, "train_y": np.int64, "test_x": np.float32, "test_y": np.int64}
_PARTIAL = ".partial-"
_DAY = 24 * 3600.0


@dataclass(frozen=True)
class FileState:
    """What tells cheaply that a file is still the one that was read.

    The change time catches what keeps size and modification time, such as ``cp -p`` over it.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """The present state of a file."""
        stat = path.stat()
        return cls(str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@dataclass(frozen=True)
class Key:
    """What an entry is made from."""

    name: str
    verified: bool
    sources: tuple[FileState, ...]
    format: int = FORMAT

    @classmethod
    def of(cls, name: str, paths: Iterable[Path], verified: bool) -> Key:
        """The key of these files as they are now.

        Raises:
            DataError: if a file has gone or cannot be reached.
        """
        try:
            return cls(name, verified, tuple(FileState.of(path) for path in paths))
        except OSError as error:
            raise DataError(f"{error.filename} cannot be reached ({error.strerror}).") from error

    @property
    def place(self) -> str:
        """The part of an entry's name that stays when its source files change."""
        return f"{self.name}-{_digest([self.verified, [file.path for file in self.sources]])}-"

    @property
    def folder(self) -> Path:
        """The folder of the entry, whether it exists or not."""
        return _entries() / (self.place + _digest(self.described()))

    def described(self) -> dict[str, Any]:
        """The key in plain types, as the fingerprint file has it."""
        return {**asdict(self), "sources": [asdict(file) for file in self.sources]}


def open_arrays(key: Key) -> Arrays | None:
    """The arrays of an entry, mapped copy-on-write, or None if there is no sound entry.

    Args:
        key: the state of the source files.

    Returns:
        The arrays by name; writing to them never reaches the files.
    """
    folder = key.folder
    try:
        fingerprint = json.loads((folder / "fingerprint.json").read_text())
        if fingerprint["key"] != key.described() or fingerprint["arrays"] != _array_states(folder):
            return None
        arrays = {name: _mapped(folder / f"{name}.npy") for name in _DTYPES}
    except (OSError, ValueError, LookupError, TypeError):
        return None  # absent, or damaged: made anew by the caller
    sound = all(arrays[name].dtype == dtype for name, dtype in _DTYPES.items())
    return arrays if sound else None


def store(key: Key, arrays: Arrays, content: Mapping[str, str]) -> Arrays:
    """Keep the arrays for the next time, if the cache folder can be written.

    Args:
        key: the state of the source files before they were read.
        arrays: the arrays by name.
        content: sha256 of the raw content of each part.

    Returns:
        The arrays, mapped from the new entry, or as given if there could be none.
    """
    try:
        _write_entry(key, arrays, content)
    except OSError as error:
        _warn_once(
            f"the parsed arrays cannot be cached in {_entries()} ({error.strerror or error}); "
            "loading works but takes as long each time."
        )
        return arrays
    return open_arrays(key) or arrays


def _write_entry(key: Key, arrays: Arrays, content: Mapping[str, str]) -> None:
    entries = _entries()
    entries.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=entries))
    try:
        for name, array in arrays.items():
            with (partial / f"{name}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                _flush(file.fileno())
        fingerprint = {"key": key.described(), "content": content, "arrays": _array_states(partial)}
        with (partial / "fingerprint.json").open("w") as text:
            json.dump(fingerprint, text, indent=1)
            text.flush()
            _flush(text.fileno())
        _publish(partial, key)
    finally:  # also after Ctrl-C or a full disk; gone already if it was published
        shutil.rmtree(partial, ignore_errors=True)
    _remove_outdated(key)


def _publish(partial: Path, key: Key) -> None:
    try:
        partial.rename(key.folder)
    except OSError:
        if open_arrays(key) is not None:
            return  # another process was faster; its entry is as good
        if not key.folder.exists():
            raise
        shutil.rmtree(key.folder)  # a damaged entry
        partial.rename(key.folder)


def _remove_outdated(key: Key) -> None:
    """Delete entries of earlier states of the same files, and what killed processes left."""
    for entry in _entries().iterdir():
        outdated = entry.name.startswith(key.place) and entry != key.folder
        if outdated or (entry.name.startswith(_PARTIAL) and _age(entry) > _DAY):
            shutil.rmtree(entry, ignore_errors=True)  # an array in use stays mapped on POSIX


def _age(entry: Path) -> float:
    try:
        return time.time() - entry.stat().st_mtime
    except OSError:
        return 0.0


def _array_states(folder: Path) -> dict[str, list[int]]:
    """Size and modification time of each array file, to notice later damage to the entry."""
    stats = {name: (folder / f"{name}.npy").stat() for name in _DTYPES}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _mapped(path: Path) -> NDArray[Any]:
    return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))


def _entries() -> Path:
    return user_cache() / "arrays"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _flush(descriptor: int) -> None:
    os.fsync(descriptor)


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, NormscopeWarning, stacklevel=2)
