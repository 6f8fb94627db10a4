"""Records of a store that an earlier version of the user's own files computed."""

from __future__ import annotations

from collections.abc import Iterable

from normscope.import_path import find_source_file
from normscope.results import Record
from normscope.results.record import CODE, custom_parts
from normscope.sweeps.own import files_digest

__all__ = ["earlier_records"]


def earlier_records(records: Iterable[Record]) -> list[Record]:
    """The records whose code is no longer what stands in the files of their model, data and loss.

    Args:
        records: of any experiment; those of registered parts have no code of their own.

    Returns:
        A part of them. Where a file cannot be found from here, nothing is known of its records,
        and they are not among them.
    """
    digests: dict[tuple[str, ...], str | None] = {}
    found = []
    for record in records:
        if record.parameters.get(CODE) is None:  # of registered parts, or of other work
            continue
        places = custom_parts(record.parameters)
        if places not in digests:
            digests[places] = _present_digest(places)
        present = digests[places]
        if present is not None and record.parameters[CODE] != present:
            found.append(record)
    return found


def _present_digest(places: tuple[str, ...]) -> str | None:
    """The digest of the files as they are; to read a store must not run the code that it names."""
    paths = [path for path in map(find_source_file, places) if path is not None]
    try:
        return files_digest(paths) if paths and len(paths) == len(places) else None
    except OSError:
        return None
