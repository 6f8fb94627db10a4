"""Where the files of a data set are: in the given root, or in the known places in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from normscope.data.collection import Collection, Layout, Source
from normscope.errors import DataError

VARIABLE = "NORMSCOPE_DATA"


def user_cache() -> Path:
    """The folder of this user where normscope keeps downloads and parsed arrays."""
    return Path(platformdirs.user_cache_dir("normscope", appauthor=False))


def download_root() -> Path:
    """The root below which downloaded files are kept."""
    return user_cache() / "data"


def find_source(
    collection: Collection, root: str | os.PathLike[str] | None = None
) -> Source | None:
    """The files of a data set, from the first place that has them all.

    Args:
        collection: the data set.
        root: the only place to look in; None: ``$NORMSCOPE_DATA``, then the user cache.

    Returns:
        The files, or None if no place has any. A download that stopped half-way counts as none.

    Raises:
        DataError: if a place chosen by the user is not a folder, cannot be read or has only some
            of the files.
    """
    if root is not None:
        root = Path(root).expanduser().absolute()
        if not root.is_dir():
            raise DataError(f"{root} is not a folder; give the folder that holds the data files.")
        return _in_chosen_root(collection, root)
    if variable := os.environ.get(VARIABLE):
        chosen = Path(variable).expanduser().absolute()
        if not chosen.is_dir():
            raise DataError(
                f"{chosen}, named by ${VARIABLE}, is not a folder; name the folder that holds the "
                "data files, or unset the variable."
            )
        source = _in_chosen_root(collection, chosen)
        if source is not None:
            return source
    return next(_complete(collection, download_root()), None)


def _in_chosen_root(collection: Collection, root: Path) -> Source | None:
    try:
        for source in _complete(collection, root):
            return source
        for folder, layout in _candidates(collection, root):
            _require_none(collection, folder, layout)
    except OSError as error:
        raise DataError(f"{root} cannot be searched ({error}); check its permissions.") from error
    return None


def _require_none(collection: Collection, folder: Path, layout: Layout) -> None:
    present = _present(folder, layout)
    if present:
        missing = ", ".join(
            layout.files[part][0] for part in collection.official if part not in present
        )
        raise DataError(
            f"{folder} has some files of {collection.name} but lacks {missing}; "
            "add what is missing or remove the rest."
        )


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
    """The files that exist, by part; the first accepted name of each."""
    if layout.archive is not None:
        archive = folder / layout.archive
        return dict.fromkeys(layout.files, archive) if archive.is_file() else {}
    return {
        part: path
        for part, names in layout.files.items()
        for path in [next((folder / name for name in names if (folder / name).is_file()), None)]
        if path is not None
    }
