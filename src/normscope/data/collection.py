"""Data sets kept in files: their parts, accepted forms and official digests, and where they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import platformdirs
from numpy.typing import NDArray

from normscope.errors import DataError

Pixels = NDArray[np.uint8]

VARIABLE = "NORMSCOPE_DATA"
_OF_VARIABLE = (f", named by ${VARIABLE},", ", or unset the variable")


class Official(NamedTuple):
    """Digest and size of a part's official content, after unpacking gzip, xz or tar."""

    sha256: str
    size: int


class PixelSplits(NamedTuple):
    """The bytes of both splits: images (samples, channels, height, width), labels (samples,)."""

    train_images: Pixels
    train_labels: Pixels
    test_images: Pixels
    test_labels: Pixels


@dataclass(frozen=True)
class Layout:
    """One form in which the parts of a data set are stored.

    Args:
        files: accepted file names of each part, the preferred first; in an archive, its members.
        archive: name of the tar.gz that holds the files; None: they are in a folder.
        decode: converts the content of a file to the content that the digests are of; its second
            argument names the file in messages.
        overhead: bytes by which a file may exceed the raw content.
    """

    files: Mapping[str, tuple[str, ...]]
    archive: str | None = None
    decode: Callable[[bytes, str], bytes] = lambda raw, where: raw
    overhead: int = 0


@dataclass(frozen=True)
class Source:
    """Where the parts of a data set were found.

    Args:
        folder: that holds them.
        layout: their form.
        files: the file of each part; the same archive for all of them if there is one.
    """

    folder: Path
    layout: Layout
    files: Mapping[str, Path]

    def paths(self) -> list[Path]:
        """The distinct files on disk."""
        return list(dict.fromkeys(self.files.values()))


@dataclass(frozen=True)
class Collection:
    """A data set of images that is kept in files.

    Args:
        name: the name it is loaded by.
        folders: to search below a root, the preferred first; "." is the root itself.
        layouts: the forms it may have, the preferred first.
        official: digest and size of the official raw content of each part.
        parse: returns the array of a part from its content, after checking its structure; the last
            argument names the file in messages.
        assemble: returns both splits from the arrays of the parts; the last argument names the
            folder in messages.
        classes: the names of the classes by label.
        downloads: the sha256 of each file to download.
        mirrors: URLs of folders that hold those files, the preferred first.
    """

    name: str
    folders: tuple[str, ...]
    layouts: tuple[Layout, ...]
    official: Mapping[str, Official]
    parse: Callable[[str, bytes, str], Pixels]
    assemble: Callable[[Mapping[str, Pixels], str], PixelSplits]
    classes: tuple[str, ...]
    downloads: Mapping[str, str] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()


COLLECTIONS: dict[str, Collection] = {}
"""The data sets kept in files, by name; each adds itself where it is defined."""


def user_cache() -> Path:
    """Folder of this user for downloads and parsed arrays."""
    return Path(platformdirs.user_cache_dir("normscope", appauthor=False))


def download_root() -> Path:
    """Folder of downloaded files."""
    return user_cache() / "data"


def find_source(
    collection: Collection, root: str | os.PathLike[str] | None = None
) -> Source | None:
    """Find the files of a data set in the first folder that has them all.

    Args:
        collection: the data set.
        root: the only folder to search; None: ``$NORMSCOPE_DATA``, then the user cache.

    Returns:
        The files; None if no folder has any. An incomplete download counts as none.

    Raises:
        DataError: if a path chosen by the user is not a folder, cannot be read or has only some of
            the files.
    """
    variable = os.environ.get(VARIABLE)
    if root is not None or variable:
        folder = Path(root if root is not None else str(variable)).expanduser().absolute()
        if not folder.is_dir():
            named, remedy = ("", "") if root is not None else _OF_VARIABLE
            raise DataError(
                f"{folder}{named} is not a folder; give the folder that holds the data "
                f"files{remedy}."
            )
        source = _find_in(collection, folder)
        if source is not None or root is not None:
            return source
    return next(_complete(collection, download_root()), None)


def _find_in(collection: Collection, root: Path) -> Source | None:
    """Find the files below a folder chosen by the user, where an incomplete set is an error."""
    try:
        if source := next(_complete(collection, root), None):
            return source
        for folder, layout in _candidates(collection, root):
            if present := _present(folder, layout):
                parts = (part for part in collection.official if part not in present)
                raise DataError(
                    f"{folder} has some files of {collection.name} but lacks "
                    f"{', '.join(layout.files[part][0] for part in parts)}; add what is missing "
                    "or remove the rest."
                )
    except OSError as error:
        raise DataError(f"{root} cannot be searched ({error}); check its permissions.") from error
    return None


def _complete(collection: Collection, root: Path) -> Iterator[Source]:
    for folder, layout in _candidates(collection, root):
        files = _present(folder, layout)
        if len(files) == len(collection.official):
            yield Source(folder, layout, files)


def _candidates(collection: Collection, root: Path) -> Iterator[tuple[Path, Layout]]:
    for layout in collection.layouts:
        for folder in collection.folders:
            yield root / folder, layout


def _present(folder: Path, layout: Layout) -> dict[str, Path]:
    """Existing files by part; the first accepted name of each."""
    if layout.archive is not None:
        archive = folder / layout.archive
        return dict.fromkeys(layout.files, archive) if archive.is_file() else {}
    return {
        part: path
        for part, names in layout.files.items()
        for path in [next((folder / name for name in names if (folder / name).is_file()), None)]
        if path is not None
    }
