"""Image data sets from files: found, read once, standardized, and mapped from the cache later."""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.data import cache
from normscope.data.collection import Collection, Pixels, Source, find_source
from normscope.data.content import read_parts
from normscope.data.dataset import Dataset, Split
from normscope.data.fetch import download
from normscope.errors import DataError

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
    keys = [cache.Key.of(collection.name, source.paths(), verified=True)]
    if not verify:  # a verified entry serves unverified loads too
        keys.append(cache.Key.of(collection.name, source.paths(), verified=False))
    for key in keys:
        if (arrays := cache.open_arrays(key)) is not None:
            return _dataset(collection, arrays)
    arrays, content = _read(collection, source, verify)
    return _dataset(collection, cache.store(keys[-1], arrays, content))


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


def _read(
    collection: Collection, source: Source, verify: bool
) -> tuple[cache.Arrays, dict[str, str]]:
    parts = read_parts(collection, source, verify)
    splits = collection.assemble(
        {name: part.array for name, part in parts.items()}, str(source.folder)
    )
    train, test = standardize(splits.train_images, splits.test_images)
    arrays: cache.Arrays = {
        "train_x": train,
        "train_y": splits.train_labels.astype(np.int64),
        "test_x": test,
        "test_y": splits.test_labels.astype(np.int64),
    }
    return arrays, {name: part.sha256 for name, part in parts.items()}


def _dataset(collection: Collection, arrays: cache.Arrays) -> Dataset:
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
