"""A store that is followed while another process writes it: each call returns what is new.

Nothing of a row says when it was changed. The index of the records holds the state of each, so one
pass over the index finds what was added or has another state; those that run or failed are looked
up, since another attempt may have the same state. Results never change again, and the chunks of a
running record are numbered, so both are read once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from normscope.results import tables
from normscope.results.codec import RawDataset, decode
from normscope.results.database import Database
from normscope.results.record import State
from normscope.results.schema import Connection, reading_data
from normscope.results.tables import Row

_REPEATED = (State.RUNNING, State.FAILED)  # states that another attempt may have too
_TIMEOUT = 2.0  # seconds to wait for a lock; the next call tries again


class Following:
    """Rows of a store as they are added or changed; never writes to the file.

    Every method raises an error of normscope if the file is locked, damaged, deleted or replaced.
    Close it then, and open another.

    Args:
        path: of the store.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._database = Database(Path(path), read_only=True, timeout=_TIMEOUT)
        self._states: dict[int, str] = {}  # by number
        self._attempts: dict[int, int] = {}  # of those in a state that another attempt may have
        self._waiting: list[int] = []  # numbers of changed records that were not returned yet
        self._seen: tuple[Connection, int] | None = None  # the last state of the file

    @property
    def known(self) -> int:
        """Number of records that `changes` has returned."""
        return len(self._states)

    def count(self) -> int:
        """Return the number of records in the file."""
        with self._database.reading() as connection:
            return tables.written(connection).records

    def changes(self, most: int = 500) -> list[Row]:
        """Return records that were added, or have another state or attempt than when returned.

        Args:
            most: of them in one call; the next calls return the rest.
        """
        with self._database.reading() as connection:
            if not self._waiting:
                self._waiting = self._find_changes(connection)
            some, self._waiting = self._waiting[:most], self._waiting[most:]
            found = tables.numbered(connection, some)
        self._states.update((row.id, row.state) for row in found)
        self._attempts.update((row.id, row.attempts) for row in found if row.state in _REPEATED)
        return found

    def _find_changes(self, connection: Connection) -> list[int]:
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if self._seen is not None and self._seen[0] is connection and self._seen[1] == version:
            return []
        self._seen = connection, version
        changed, same = [], []
        for number, state in tables.states(connection):
            if self._states.get(number) != state:
                changed.append(number)
            elif state in _REPEATED:
                same.append(number)
        attempts = tables.attempts(connection, same)
        return changed + [each for each in same if attempts.get(each) != self._attempts[each]]

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """Return records by their numbers."""
        with self._database.reading() as connection:
            return tables.numbered(connection, numbers)

    def starts(self, rows: Sequence[Row]) -> dict[int, float]:
        """Return the last start of rows by their number, in seconds since 1970, where known."""
        with self._database.reading() as connection:
            numbers = [row.id for row in rows]
            return tables.start_times(connection, numbers)

    def chunks(self, row: Row, first: int = 0) -> list[RawDataset]:
        """Return the chunks of a record, checked; a result is one chunk.

        Args:
            row: the record, as it was read.
            first: number of the first chunk.
        """
        with self._database.reading() as connection:
            current = tables.row_of(connection, row.key)
            if (current.state.has_result, current.attempts) != (row.state.has_result, row.attempts):
                return []  # another attempt, or the whole result: the next changes have it
            found = tables.contents(connection, current, first)
        with reading_data(self._database.name, row.key):
            return [decode(content) for content in found]

    def close(self) -> None:
        """Close the file; may be called more than once."""
        self._database.close()
