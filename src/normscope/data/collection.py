"""How a data set lies on disk: its parts, the forms they come in, and their official digests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


class Official(NamedTuple):
    """What the official raw content of a part is, after gzip, xz or tar."""

    sha256: str
    size: int


class PixelSplits(NamedTuple):
    """The bytes of both splits: images (samples, channels, height, width), labels (samples,)."""

    train_images: Pixels
    train_labels: Pixels
    test_images: Pixels
    test_labels: Pixels


def unchanged(raw: bytes, where: str) -> bytes:
    """The content itself: the form needs no decoding."""
    del where
    return raw


@dataclass(frozen=True)
class Layout:
    """One form in which the parts of a data set are stored.

    Args:
        files: accepted file names of each part, the preferred first; in an archive, its members.
        archive: name of the tar.gz that holds the files, or None if they lie in a folder.
        decode: turns the content of a file into the raw content that the digests are of; its
            second argument names the file in messages.
        overhead: bytes by which a file may exceed the raw content.
    """

    files: Mapping[str, tuple[str, ...]]
    archive: str | None = None
    decode: Callable[[bytes, str], bytes] = unchanged
    overhead: int = 0


@dataclass(frozen=True)
class Source:
    """Where the parts of a data set were found.

    Args:
        folder: the folder they lie in.
        layout: their form.
        files: the file of each part; the same archive for all of them if there is one.
    """

    folder: Path
    layout: Layout
    files: Mapping[str, Path]

    def paths(self) -> list[Path]:
        """The files on disk, each once."""
        return list(dict.fromkeys(self.files.values()))


@dataclass(frozen=True)
class Collection:
    """A data set of images that is kept in files.

    Args:
        name: the name it is loaded by.
        folders: where to look below a root, the preferred first; "." is the root itself.
        layouts: the forms it may have, the preferred first.
        official: digest and size of the official raw content of each part.
        parse: array of a part from its raw content, after checking its structure; the last
            argument names the file in messages.
        assemble: both splits from the arrays of the parts; the last argument names the folder.
        classes: the names of the classes by label.
        downloads: the sha256 of each file to download.
        mirrors: addresses of folders that hold those files, the preferred first.
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
