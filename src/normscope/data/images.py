"""Image data sets from files: find, read once, standardise, and map from the cache afterwards."""

from __future__ import annotations

import os

import numpy as np
import torch

from normscope.data import cache
from normscope.data.collection import Collection, Source
from normscope.data.content import read_parts
from normscope.data.dataset import Dataset, Split
from normscope.data.fetch import download
from normscope.data.locate import find_source
from normscope.data.standardize import standardized
from normscope.errors import DataError


def load_images(
    collection: Collection, root: str | os.PathLike[str] | None, verify: bool
) -> Dataset:
    """A data set from its files, wherever they are, or from its cached arrays.

    Args:
        collection: the data set.
        root: the only place to look in, or None for the usual places and the network.
        verify: require the official content.

    Returns:
        The data set, standardised.
    """
    source = find_source(collection, root) or _downloaded(collection, root)
    keys = [cache.Key.of(collection.name, source.paths(), verified=True)]
    if not verify:  # official content also serves those who would admit another
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
        raise DataError(f"{collection.name} vanished from the user cache after its download.")
    return source


def _example_files(collection: Collection) -> list[str]:
    """The names a user may look for: each archive, and the first file of each other form."""
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
    train, test = standardized(splits.train_images, splits.test_images)
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
