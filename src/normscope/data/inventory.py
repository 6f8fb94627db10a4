"""The data sets: which there are, where their files are, and whether these are intact."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.data.collection import (
    COLLECTIONS,
    VARIABLE,
    Collection,
    download_root,
    find_source,
)
from normscope.data.content import Check, check_parts
from normscope.data.dataset import DATASETS
from normscope.data.fetch import download as download_files
from normscope.errors import DataError, NormscopeError
from normscope.progress import ProgressCallback, ignore_progress
from normscope.text import Rendered, Table

Root = str | os.PathLike[str] | None


@dataclass(frozen=True, repr=False)
class Status(Rendered):
    """Whether a data set can be loaded without a download.

    Args:
        name: its name.
        what: one line of description.
        present: whether it is embedded, generated, or all its files are there.
        where: the folder of its files; None if it has none or they are not found.
        problem: what is wrong with the searched folder, or empty.
    """

    name: str
    what: str
    present: bool
    where: Path | None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "where": None if self.where is None else str(self.where)}

    def _table(self) -> Table:
        values = self.to_dict()
        problem = values.pop("problem")
        return Table({"data": values.pop("name"), **values}, notes=[problem])


def inventory(root: Root = None) -> list[Status]:
    """Status of every data set.

    Args:
        root: the only folder to search; None: the default folders.

    Returns:
        One status per data set, by name.
    """
    return [_status(name, root) for name in DATASETS]


def _status(name: str, root: Root) -> Status:
    try:
        where = path(name, root)
    except NormscopeError as error:
        return Status(name, DATASETS.summary(name), False, None, str(error))
    present = where is not None or not parts(name)
    return Status(name, DATASETS.summary(name), present, where)


def parts(name: str) -> tuple[str, ...]:
    """Names of the parts of a data set that are files; none if it is embedded or generated.

    >>> parts("mnist")[1]
    'train-labels-idx1-ubyte'
    >>> parts("digits")
    ()
    """
    collection = _collection(name)
    return () if collection is None else tuple(collection.official)


def path(name: str, root: Root = None) -> Path | None:
    """Folder that holds the files of a data set.

    Args:
        name: the data set.
        root: the only folder to search; None: the default folders.

    Returns:
        The folder; None if it has no files (embedded, generated) or they are not found.
    """
    collection = _collection(name)
    source = None if collection is None else find_source(collection, root)
    return None if source is None else source.folder


def download(name: str, root: Root = None) -> Path | None:
    """Download the files of a data set unless they are on this machine.

    Files in ``$NORMSCOPE_DATA`` are not changed; a damaged download is replaced.

    Args:
        name: the data set.
        root: the folder to download into; None: the user cache.

    Returns:
        The folder that holds the files, or None if the data set has none.
    """
    collection = _collection(name)
    if collection is None:
        return None
    source = find_source(collection) if root is None else None
    if source is not None and not source.folder.is_relative_to(download_root()):
        return source.folder
    return download_files(collection, root)


def verify(
    name: str, root: Root = None, progress: ProgressCallback = ignore_progress
) -> list[Check]:
    """Read all files of a data set and compare their content with the official digests.

    Args:
        name: the data set.
        root: the only folder to search; None: the default folders.
        progress: called with a `Progress` event before each part is checked.

    Returns:
        One check per part; none if the data set has no files.

    Raises:
        DataError: if its files are not found.
    """
    collection = _collection(name)
    if collection is None:
        return []
    source = find_source(collection, root)
    if source is None:
        raise missing_error(name, root)
    return check_parts(collection, source, progress)


def missing_error(name: str, root: Root = None) -> DataError:
    """Error for a data set whose files are not found."""
    command = f"normscope data fetch {name}"
    if root is None:
        chosen = os.environ.get(VARIABLE)
        named = f"{chosen} (${VARIABLE}) or " if chosen else ""
        place = f"{named}{download_root()}"
    else:
        place = str(root)
        command += f" --root {shlex.quote(place)}"
    return DataError(f"{name} is not in {place}; get it with: {command}")


def _collection(name: str) -> Collection | None:
    DATASETS[name]  # raises for an unknown name, and imports the module of a known one
    return COLLECTIONS.get(name)
