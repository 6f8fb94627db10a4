"""Damage to SQLite's write-ahead log, which SQLite itself passes over in silence.

After a crash the log holds what the file lacks. SQLite recovers it up to the first frame whose
checksum is wrong and ignores the rest. Two witnesses say what is missing: frames behind that one
which belong to the same log, and the log's index (the file ``-shm``), which still has the number of
frames that the killed process had written. The formats are SQLite's "WAL-mode File Format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_LOG_HEADER = struct.Struct(">8I")  # magic, version, page size, sequence, two salts, two checksums
_FRAME_HEADER = struct.Struct(">6I")  # page, pages after a commit or 0, two salts, two checksums
_BIG_ENDIAN = 0x377F0683  # magic of a log whose checksums are of big-endian words
_INDEX = struct.Struct("=16xI12x8s56xI")  # committed frames, salts, frames copied to the database


class LogIndex(NamedTuple):
    """What the index of a log says of it.

    Args:
        frames: committed to the log.
        salts: that the frames of the present log have in common.
        copied: frames that are in the database already.
    """

    frames: int = 0
    salts: bytes = b""
    copied: int = 0


def read_index(path: Path) -> LogIndex:
    """Return what the index of a log says; no frames if there is none.

    Args:
        path: of the file ``-shm``.
    """
    try:
        with path.open("rb") as stream:
            return LogIndex(*_INDEX.unpack(stream.read(_INDEX.size)))
    except (OSError, struct.error):
        return LogIndex()


def lost_writes(log: Path, page_size: int, before: LogIndex, after: LogIndex) -> int:
    """Return how many committed writes may be missing after SQLite has recovered a log; 0 if none.

    Args:
        log: path of the file ``-wal``.
        page_size: of the database.
        before: the index as the last process left it.
        after: the index that SQLite made of the log.
    """
    behind = sum(is_commit for is_commit in _frames_behind(log, page_size, after.frames))
    same_log = before.salts == after.salts or not after.frames
    unsaved = before.frames - max(after.frames, before.copied)
    return behind or (max(unsaved, 0) if same_log else 0)


def _frames_behind(log: Path, page_size: int, recovered: int) -> Iterator[bool]:
    """Yield whether a frame ends a write, for the frames of this log that were not recovered."""
    size = _FRAME_HEADER.size + page_size
    try:
        with log.open("rb") as stream:
            salts = _salts(stream.read(_LOG_HEADER.size + _FRAME_HEADER.size))
            stream.seek(_LOG_HEADER.size + recovered * size)
            while len(header := stream.read(_FRAME_HEADER.size)) == _FRAME_HEADER.size:
                _, pages, *found = _FRAME_HEADER.unpack(header)[:4]
                if found[0] == salts[0] or found[1] == salts[1]:  # others are of earlier logs
                    yield pages > 0
                stream.seek(page_size, 1)
    except (OSError, struct.error):
        return


def _salts(start: bytes) -> tuple[int, int]:
    """Return the salts of a log; those of its first frame if its header is damaged."""
    words = _LOG_HEADER.unpack_from(start)
    order = ">" if words[0] == _BIG_ENDIAN else "<"
    first = second = 0
    for a, b in struct.iter_unpack(f"{order}2I", start[:24]):
        first = (first + a + second) & 0xFFFFFFFF
        second = (second + b + first) & 0xFFFFFFFF
    if (first, second) == words[6:]:
        return words[4], words[5]
    _, _, *found = _FRAME_HEADER.unpack_from(start, _LOG_HEADER.size)[:4]
    return found[0], found[1]
