"""Content of a data set's files: unpacked in memory, and checked against the official digests.

Plain, gzip, xz and tar.gz files are read up to a limit and never extracted to disk.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol, cast

from normscope.data.collection import Collection, Pixels, Source
from normscope.errors import DataError
from normscope.progress import Progress, ProgressCallback
from normscope.text import Rendered, Table

_VARIANT_LIMIT = 1 << 30  # bytes of a part that is not the official one
_TAR_OVERHEAD = 1 << 20  # headers, padding and the small text files of the official archives
_CHUNK = 1 << 20
_XZ_MEMORY = 256 << 20  # the strongest preset's dictionary; a larger one is an attack

Part = tuple[Pixels, str]  # the pixels or labels of a file, and the sha256 of its content


@dataclass(frozen=True, repr=False)
class Check(Rendered):
    """Whether one file has the official content, and what is wrong otherwise."""

    file: Path
    part: str
    ok: bool
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "file": str(self.file)}

    def _table(self) -> Table:
        values = {"file": str(self.file), "part": self.part, "official": self.ok}
        return Table(values, notes=[self.message])


def read_parts(collection: Collection, source: Source, verify: bool) -> dict[str, Part]:
    """Read all parts of a data set and check their structure.

    Args:
        collection: the data set.
        source: where its files are.
        verify: require the official digests and sizes.

    Returns:
        The parts by name.
    """

    def read(path: Path) -> dict[str, Part]:
        return {
            part: _part(collection, part, raw, where, verify)
            for part, where, raw in _contents(collection, source, path, verify)
        }

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # unpacking and hashing release the GIL
        return {
            name: part
            for parts in threads.map(read, source.paths())
            for name, part in parts.items()
        }


def _part(collection: Collection, name: str, raw: bytes, where: str, verify: bool) -> Part:
    array = collection.parse(name, raw, where)
    sha256, official = hashlib.sha256(raw).hexdigest(), collection.official[name].sha256
    if verify and sha256 != official:
        raise DataError(
            f"{where} does not have the official content: its sha256 is {sha256} and should be "
            f"{official}; replace the file, or allow a variant with verify=False."
        )
    return array, sha256


def check_parts(collection: Collection, source: Source, progress: ProgressCallback) -> list[Check]:
    """Check whether each part's file has the official content; continue after a damaged file.

    Args:
        collection: the data set.
        source: where its files are.
        progress: called with a `Progress` event before each part is checked.

    Returns:
        One check per part, and one for an archive that cannot be read at all.
    """
    checks: list[Check] = []
    total = len(collection.official)
    for path in source.paths():
        try:
            for part, where, raw in _contents(collection, source, path, verify=True):
                progress(Progress(part, done=len(checks), total=total, unit="files"))
                checks.append(_check(collection, part, path, where, raw))
        except DataError as error:
            parts = ", ".join(part for part, file in source.files.items() if file == path)
            checks.append(Check(path, parts, False, str(error)))
    return checks


def _check(collection: Collection, part: str, path: Path, where: str, raw: bytes) -> Check:
    try:
        _, sha256 = _part(collection, part, raw, where, verify=True)
    except DataError as error:
        return Check(path, part, False, str(error))
    return Check(path, part, True, f"sha256 {sha256}")


def _contents(
    collection: Collection, source: Source, path: Path, verify: bool
) -> Iterator[tuple[str, str, bytes]]:
    """Yield name, location and content of each part in a file."""
    layout = source.layout
    limits = {
        part: (official.size if verify else _VARIANT_LIMIT) + layout.overhead
        for part, official in collection.official.items()
    }
    if layout.archive is None:
        packed = {
            part: read_file(path, limits[part]) for part in limits if source.files[part] == path
        }
        locations = {part: str(path) for part in packed}
    else:
        packed = _members(path, {part: names[0] for part, names in layout.files.items()}, limits)
        locations = {part: f"{layout.files[part][0]} of {path}" for part in packed}
    for part in list(packed):
        yield part, locations[part], layout.decode(packed.pop(part), locations[part])


def _members(path: Path, members: Mapping[str, str], limits: Mapping[str, int]) -> dict[str, bytes]:
    contents = read_members(path, frozenset(members.values()), sum(limits.values()) + _TAR_OVERHEAD)
    for part, member in members.items():
        if member not in contents:
            raise corrupt(path, f"it lacks the member {member!r}")
        if len(contents[member]) > limits[part]:
            raise corrupt(path, f"its member {member!r} has more than {limits[part]} bytes")
    return {part: contents[member] for part, member in members.items()}


class Readable(Protocol):
    """A stream of bytes; an empty read is the end."""

    def read(self, size: int, /) -> bytes: ...  # noqa: D102


def corrupt(where: str | Path, problem: str) -> DataError:
    """Error for a file whose content cannot be used.

    >>> print(corrupt("a.gz", "it is truncated"))
    a.gz cannot be used: it is truncated; replace the file or remove it.
    """
    return DataError(f"{where} cannot be used: {problem}; replace the file or remove it.")


def read_file(path: Path, limit: int) -> bytes:
    """Read a whole file, unpacked if its name ends in .gz or .xz.

    Args:
        path: the file.
        limit: the most bytes after unpacking, so that a small file cannot fill the memory.
    """
    with _data_errors(path), path.open("rb") as file:
        if path.suffix == ".gz":
            return _read_all(_Bounded(gzip.GzipFile(fileobj=file), path, limit))
        return _read_all(_Bounded(_Xz(file) if path.suffix == ".xz" else file, path, limit))


def read_members(path: Path, wanted: frozenset[str], limit: int) -> dict[str, bytes]:
    """Read members of a tar.gz file; nothing is written to disk.

    An archive with a member outside its folder, a link, a device or a duplicate is refused.

    Args:
        path: the archive.
        wanted: names of the members to read.
        limit: the most bytes of the unpacked archive.

    Returns:
        The content by member.
    """
    contents: dict[str, bytes] = {}
    seen: set[str] = set()
    with _data_errors(path), path.open("rb") as file:
        stream = _Bounded(gzip.GzipFile(fileobj=file), path, limit)
        # in the mode "r|" tarfile only calls read
        with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|") as archive:
            for member in archive:
                name = _safe_name(member, seen, path)
                if name in wanted:
                    contents[name] = _member_content(archive, member, path)
        while stream.read(_CHUNK):  # to the end, where gzip compares its checksum
            pass
    return contents


@contextmanager
def _data_errors(path: Path) -> Iterator[None]:
    """Raise errors of reading and unpacking as DataError."""
    try:
        yield
    except (EOFError, tarfile.ReadError) as error:
        raise corrupt(path, f"it is truncated or of another format ({error})") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise corrupt(path, f"its compressed data are damaged ({error})") from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}); check its permissions."
        ) from error
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise corrupt(path, f"its tar headers are damaged ({error})") from error


def _read_all(stream: Readable) -> bytes:
    return b"".join(iter(lambda: stream.read(_CHUNK), b""))


class _Bounded:
    """A stream that raises beyond its limit."""

    def __init__(self, stream: Readable, path: Path, limit: int) -> None:
        self._stream, self._path, self._limit = stream, path, limit
        self._left = limit

    def read(self, size: int, /) -> bytes:
        piece = self._stream.read(min(size, _CHUNK, self._left + 1))
        self._left -= len(piece)
        if self._left < 0:
            raise corrupt(self._path, f"it holds more than the {self._limit} bytes expected")
        return piece


class _Xz:
    """One xz stream; unlike lzma.LZMAFile it limits the memory that a header may request."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, size: int, /) -> bytes:
        while not self._decompressor.eof:
            packed = self._file.read(_CHUNK) if self._decompressor.needs_input else b""
            if self._decompressor.needs_input and not packed:
                raise EOFError("the xz stream has no end")
            if piece := self._decompressor.decompress(packed, size):
                return piece
        if self._decompressor.unused_data or self._file.read(1):
            raise lzma.LZMAError("bytes follow the end of the xz stream")
        return b""


def _safe_name(member: tarfile.TarInfo, seen: set[str], path: Path) -> str:
    parts = PurePosixPath(member.name)
    if parts.is_absolute() or ".." in parts.parts or "\\" in member.name or ":" in member.name:
        raise corrupt(path, f"its member {member.name!r} lies outside the archive's folder")
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.issparse():
        raise corrupt(path, f"its member {member.name!r} is neither a plain file nor a folder")
    name = str(parts)
    if name in seen and not member.isdir():
        raise corrupt(path, f"its member {name!r} occurs twice")
    seen.add(name)
    return name


def _member_content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    file = archive.extractfile(member)
    if file is None:
        raise corrupt(path, f"its member {member.name!r} is not a plain file")
    content = _read_all(file)
    if len(content) != member.size:
        raise corrupt(path, f"its member {member.name!r} is truncated")
    return content
