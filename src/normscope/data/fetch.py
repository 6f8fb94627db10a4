"""Downloads of the official files by pooch: over https, checked by sha256, written atomically."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from normscope.data.collection import VARIABLE, Collection, download_root
from normscope.errors import DataError

_TIMEOUT = 30.0  # seconds without an answer before the next mirror is tried
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


def download(collection: Collection, root: str | os.PathLike[str] | None = None) -> Path:
    """Download the files of a data set that are missing or damaged.

    Args:
        collection: the data set.
        root: the folder in which to create the data set's folder; None: the user cache.

    Returns:
        The folder that holds the files.

    Raises:
        DataError: if no mirror has a file with the right digest, or it cannot be written.
    """
    folder = (
        download_root() if root is None else Path(root).expanduser().absolute()
    ) / collection.name
    with _quiet_pooch():
        for file in collection.downloads:
            _download_file(collection, file, folder)
    return folder


def _download_file(collection: Collection, file: str, folder: Path) -> None:
    failures = []
    for mirror in collection.mirrors:
        try:
            _try_mirror(mirror, file, collection.downloads[file], folder)
            return
        except (OSError, ValueError) as error:  # of requests; ValueError for a wrong digest
            failures.append(f"{mirror}: {_reason(error)}")
    wanted = ", ".join(collection.downloads)
    raise DataError(
        f"{file} could not be downloaded ({'; '.join(failures)}); get {wanted} "
        f"by hand into {folder}, or name the folder that has them in ${VARIABLE}."
    )


def _try_mirror(mirror: str, file: str, sha256: str, folder: Path) -> None:
    import pooch  # only needed for a download

    _check_https(mirror)
    registry = {file: f"sha256:{sha256}"}
    with _progress(file) as bar:
        downloader = pooch.HTTPDownloader(
            progressbar=bar,
            timeout=_TIMEOUT,
            chunk_size=1 << 16,
            headers={"Accept-Encoding": "identity"},  # the .gz itself, not what it unpacks to
            hooks={"response": _check_redirect},
        )
        pooch.create(path=folder, base_url=mirror, registry=registry).fetch(
            file, downloader=downloader
        )


def _check_https(url: str) -> None:
    """Raise a ValueError for an address on the network that is not https."""
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in _THIS_MACHINE:
        raise ValueError(f"{parts.scheme}://{parts.hostname} is not https")


def _check_redirect(response: Any, **options: object) -> None:
    """Refuse a redirection to an address that is not https before it is followed."""
    del options  # requests passes those of the connection
    if response.is_redirect:
        _check_https(urljoin(response.url, response.headers["location"]))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and getattr(error, "response", None) is not None:
        return f"HTTP status {error.response.status_code}"  # type: ignore[attr-defined]
    if isinstance(error, ValueError) and "hash" in str(error):
        return "the file there does not have the official sha256"
    return type(error).__name__ if len(str(error)) > 100 else str(error)


@contextlib.contextmanager
def _quiet_pooch() -> Iterator[None]:
    """Silence pooch's messages: the progress bar and one final error suffice."""
    import pooch

    logger = pooch.get_logger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _progress(file: str) -> Iterator[Any]:
    """A progress bar on stderr for pooch; False if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield False
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bar(progress, file)


class _Bar:
    """The part of tqdm's interface that pooch uses, drawn by rich."""

    def __init__(self, progress: Any, file: str) -> None:
        self._progress = progress
        self._task = progress.add_task(file, total=None)
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    @total.setter
    def total(self, size: int) -> None:
        self._total = size
        self._progress.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)  # pooch then reports the whole size once

    def close(self) -> None:
        self._progress.refresh()
