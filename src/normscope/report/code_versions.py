"""Versions of the user's own files among the records of a sweep: told apart by their times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from normscope.results import Record
from normscope.results.own_parts import CODE, record_places

__all__ = ["CodeVersions"]

_Places = tuple[str, ...]


@dataclass(frozen=True)
class CodeVersions:
    """The versions that the records of a store are of, known without the files themselves.

    Args:
        digests: by the places of the user's own parts, the newest version first.
        times: when the last record of a version was started, where that is kept.
    """

    digests: Mapping[_Places, Sequence[str]]
    times: Mapping[tuple[_Places, str], float]

    @classmethod
    def of(cls, records: Iterable[Record], times: Mapping[str, float]) -> CodeVersions:
        """The versions of some records.

        Args:
            records: in the order they were added, which counts where times are not kept.
            times: when a record was last started, by its key.
        """
        last: dict[_Places, dict[str, tuple[float, int]]] = {}
        known: dict[tuple[_Places, str], float] = {}
        for number, record in enumerate(records):
            digest = record.parameters.get(CODE)
            if not isinstance(digest, str):
                continue
            places = record_places(record.parameters)
            found = last.setdefault(places, {})
            here = (times.get(record.key, 0.0), number)
            found[digest] = max(here, found.get(digest, here))
            if record.key in times:
                known[places, digest] = found[digest][0]
        ordered = {
            places: sorted(found, key=found.__getitem__, reverse=True)
            for places, found in last.items()
        }
        return cls(ordered, known)

    def age(self, parameters: Mapping[str, Any]) -> int:
        """How many newer versions there are of the files that a record is of; 0: none."""
        digest, digests = parameters.get(CODE), self.digests.get(record_places(parameters), ())
        return digests.index(digest) if digest in digests else 0

    def words(self, parameters: Mapping[str, Any]) -> str | None:
        """Which version a record is of, in words; None: there is no other of its files.

        Args:
            parameters: of the record.
        """
        places = record_places(parameters)
        digest = parameters.get(CODE)
        if len(self.digests.get(places, ())) < 2 or not isinstance(digest, str):
            return None
        which = "earlier" if self.age(parameters) else "newest"
        seconds = self.times.get((places, digest))
        told = "" if seconds is None else f", of {_date(seconds)}"
        return f"{which} version of the user's files{told} ({CODE} {digest})"


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
