"""Content of plain, gzip, xz and tar.gz files, read up to a limit and never extracted to disk."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Protocol, cast

from normscope.errors import DataError

_CHUNK = 1 << 20
_XZ_MEMORY = 256 << 20  # the strongest preset's dictionary; a larger one is an attack


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
