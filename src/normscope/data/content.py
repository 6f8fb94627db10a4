"""Content of a data set's files, checked for structure and against the official digests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.data.collection import Collection, Pixels, Source
from normscope.data.unpack import corrupt, read_file, read_members
from normscope.errors import DataError
from normscope.progress import Progress, ProgressCallback
from normscope.text import Rendered, Table

_VARIANT_LIMIT = 1 << 30  # bytes of a part that is not the official one
_TAR_OVERHEAD = 1 << 20  # headers, padding and the small text files of the official archives


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
