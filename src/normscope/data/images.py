"""Image data sets from files: found, read once, standardized, and mapped from the cache later.

An entry of the user cache is a folder of ``.npy`` files and ``fingerprint.json``. Its name is a
digest of the state of the source files (path, size, times), of the format version, and of whether
the content was verified. An entry is never changed: new content gets a new name, and a look-up
costs a few ``stat`` calls. Entries are published by renaming a finished folder.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.data.collection import Collection, Pixels, Source, find_source, user_cache
from normscope.data.content import read_parts
from normscope.data.dataset import Dataset, Split
from normscope.data.fetch import download
from normscope.errors import DataError, NormscopeWarning

FORMAT = 1  # increase it when the same files give different arrays
Arrays = dict[str, NDArray[Any]]

_DTYPES = {"train_x": np.float32, "train_y": np.int64, "test_x": np.float32, "test_y": np.int64}
_PARTIAL = ".partial-"
_DAY = 24 * 3600.0


@dataclass(frozen=True)
class Key:
    """Source files that an entry was parsed from, each by what detects a change cheaply.

    The change time detects a replacement that keeps size and modification time, such as ``cp -p``.
    """

    name: str
    verified: bool
    sources: list[dict[str, Any]]
    format: int = FORMAT

    @classmethod
    def of(cls, name: str, paths: Iterable[Path], verified: bool) -> Key:
        """Return the key of these files as they are now.

        Raises:
            DataError: if a file is missing or cannot be read.
        """
        try:
            states = [(str(path), path.stat()) for path in paths]
        except OSError as error:
            raise DataError(f"{error.filename} cannot be reached ({error.strerror}).") from error
        sources = [
            {"path": path, "size": s.st_size, "mtime_ns": s.st_mtime_ns, "ctime_ns": s.st_ctime_ns}
            for path, s in states
        ]
        return cls(name, verified, sources)

    @property
    def prefix(self) -> str:
        """The part of an entry's name that does not depend on the state of its source files."""
        return f"{self.name}-{_digest([self.verified, [file['path'] for file in self.sources]])}-"

    @property
    def folder(self) -> Path:
        """The folder of the entry, which need not exist."""
        return _entries() / (self.prefix + _digest(vars(self)))


def open_arrays(key: Key) -> Arrays | None:
    """Open the arrays of an entry, mapped copy-on-write.

    Args:
        key: the state of the source files.

    Returns:
        The arrays by name; None if there is no entry, or it is damaged.
    """
    folder = key.folder
    try:
        fingerprint = json.loads((folder / "fingerprint.json").read_text())
        if fingerprint["key"] != vars(key) or fingerprint["arrays"] != _array_states(folder):
            return None
        arrays = {
            name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False))
            for name in _DTYPES
        }
    except (OSError, ValueError, LookupError, TypeError):
        return None
    sound = all(arrays[name].dtype == dtype for name, dtype in _DTYPES.items())
    return arrays if sound else None


def store(key: Key, arrays: Arrays, content: Mapping[str, str]) -> Arrays:
    """Write the arrays to the cache; warn if its folder cannot be written.

    Args:
        key: the state of the source files before they were read.
        arrays: the arrays by name.
        content: sha256 of the raw content of each part.

    Returns:
        The arrays, mapped from the new entry, or as given if it could not be written.
    """
    try:
        _write_entry(key, arrays, content)
    except OSError as error:
        _warn_once(
            f"the parsed arrays cannot be cached in {_entries()} ({error.strerror or error}); "
            "each load will parse the files again."
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
                os.fsync(file.fileno())
        fingerprint = {"key": vars(key), "content": content, "arrays": _array_states(partial)}
        with (partial / "fingerprint.json").open("w") as text:
            json.dump(fingerprint, text, indent=1)
            text.flush()
            os.fsync(text.fileno())
        _publish(partial, key)
    finally:  # also after Ctrl-C or a full disk; already renamed if it was published
        shutil.rmtree(partial, ignore_errors=True)
    _remove_outdated(key)


def _publish(partial: Path, key: Key) -> None:
    try:
        partial.rename(key.folder)
    except OSError:
        if open_arrays(key) is not None:
            return  # another process published the same entry
        if not key.folder.exists():
            raise
        shutil.rmtree(key.folder)  # a damaged entry
        partial.rename(key.folder)


def _remove_outdated(key: Key) -> None:
    """Delete entries of earlier states of the same files, and folders of killed processes."""
    for entry in _entries().iterdir():
        outdated = entry.name.startswith(key.prefix) and entry != key.folder
        if outdated or (entry.name.startswith(_PARTIAL) and _age(entry) > _DAY):
            shutil.rmtree(entry, ignore_errors=True)  # an array in use stays mapped on POSIX


def _age(entry: Path) -> float:
    try:
        return time.time() - entry.stat().st_mtime
    except OSError:
        return 0.0


def _array_states(folder: Path) -> dict[str, list[int]]:
    """Size and modification time of each array file, to detect damage to the entry."""
    stats = {name: (folder / f"{name}.npy").stat() for name in _DTYPES}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _entries() -> Path:
    return user_cache() / "arrays"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, NormscopeWarning, stacklevel=2)


Floats = NDArray[np.float32]

_LEVELS = np.arange(256)  # values of a byte


def load_images(
    collection: Collection, root: str | os.PathLike[str] | None, verify: bool
) -> Dataset:
    """Load a data set from its cached arrays, or from its files.

    Args:
        collection: the data set.
        root: the only folder to search; None: the default folders, then a download.
        verify: require the official content.
    """
    source = find_source(collection, root) or _downloaded(collection, root)
    keys = [Key.of(collection.name, source.paths(), verified=True)]
    if not verify:  # a verified entry serves unverified loads too
        keys.append(Key.of(collection.name, source.paths(), verified=False))
    for key in keys:
        if (arrays := open_arrays(key)) is not None:
            return _dataset(collection, arrays)
    arrays, content = _read(collection, source, verify)
    return _dataset(collection, store(keys[-1], arrays, content))


def _downloaded(collection: Collection, root: str | os.PathLike[str] | None) -> Source:
    if root is not None:
        names = " or ".join(_example_files(collection))
        raise DataError(f"{collection.name} is not in {root}; put {names} there.")
    download(collection)
    source = find_source(collection)
    if source is None:
        raise DataError(f"{collection.name} disappeared from the user cache after its download.")
    return source


def _example_files(collection: Collection) -> list[str]:
    """File names for the message: each archive, and the first file of each other form."""
    return [
        layout.archive or next(iter(layout.files.values()))[-1] + ", ..."
        for layout in collection.layouts
    ]


def _read(collection: Collection, source: Source, verify: bool) -> tuple[Arrays, dict[str, str]]:
    parts = read_parts(collection, source, verify)
    pixels = {name: array for name, (array, _) in parts.items()}
    splits = collection.assemble(pixels, str(source.folder))
    train, test = standardize(splits.train_images, splits.test_images)
    arrays: Arrays = {
        "train_x": train,
        "train_y": splits.train_labels.astype(np.int64),
        "test_x": test,
        "test_y": splits.test_labels.astype(np.int64),
    }
    return arrays, {name: sha256 for name, (_, sha256) in parts.items()}


def _dataset(collection: Collection, arrays: Arrays) -> Dataset:
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Dataset(
        name=collection.name,
        train=Split(tensors["train_x"], tensors["train_y"]),
        test=Split(tensors["test_x"], tensors["test_y"]),
        classes=collection.classes,
    )


def standardize(train: Pixels, test: Pixels) -> tuple[Floats, Floats]:
    r"""Standardize both splits per channel by the training split's mean and deviation.

    .. math:: (x - \mu_c) / \sigma_c

    The constants are computed exactly from a histogram of the 256 byte values, and applied by a
    table of 256 entries per channel, each rounded once from double precision. A channel that is
    constant over the training split is only centred.

    Args:
        train: images (samples, channels, height, width).
        test: images of the same channels.

    Returns:
        The two splits, in the order of the arguments.

    >>> train = np.array([[[[0, 2]]], [[[2, 0]]]], dtype=np.uint8)
    >>> standardize(train, train + np.uint8(1))[1].ravel().tolist()
    [0.0, 2.0, 2.0, 0.0]
    """
    tables = [_table(train[:, channel]) for channel in range(train.shape[1])]
    return _apply(tables, train), _apply(tables, test)


def _table(pixels: Pixels) -> Floats:
    counts = np.zeros(256, dtype=np.int64)
    for block in np.array_split(pixels, max(1, len(pixels) // 1000)):  # bincount widens to int64
        counts += np.bincount(block.ravel(), minlength=256)
    total = counts.sum()
    mean = (counts * _LEVELS).sum() / total
    variance = (counts * (_LEVELS - mean) ** 2).sum() / total
    deviation = np.sqrt(variance) if variance > 0 else 1.0
    return np.asarray((_LEVELS - mean) / deviation, dtype=np.float32)


def _apply(tables: list[Floats], images: Pixels) -> Floats:
    result = np.empty(images.shape, dtype=np.float32)
    for channel, table in enumerate(tables):
        result[:, channel] = table[images[:, channel]]
    return result
