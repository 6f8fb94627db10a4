"""Rows of a store's tables: written, moved between states, and checked when read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from normscope.errors import StateError, UnknownNameError
from normscope.results.content import Content
from normscope.results.failures import damaged
from normscope.results.identity import Identity
from normscope.results.record import State
from normscope.results.times import keep_time
from normscope.results.versions import keep_versions

__all__ = [
    "Row",
    "contents",
    "counts",
    "drop_contents",
    "insert_record",
    "row_in_state",
    "row_of",
    "rows",
    "set_state",
    "write_content",
]

_STATES = frozenset(State)
_COLUMNS = (
    "id, key, experiment, parameters, seed, revision, version, state, attempts, error, seconds"
)


@dataclass(frozen=True)
class Row:
    """One row of the records."""

    id: int
    identity: Identity
    key: str
    parameters: dict[str, Any]
    state: State
    attempts: int
    error: str | None
    seconds: float | None


def insert_record(connection: sqlite3.Connection, identity: Identity) -> str:
    """Add a pending record unless it is there; its key."""
    key = identity.key
    connection.execute(
        "INSERT INTO records (key, experiment, parameters, seed, revision, version, state) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
        (
            key,
            identity.experiment,
            identity.parameters,
            identity.seed,
            identity.revision,
            identity.version,
            State.PENDING.value,
        ),
    )
    return key


def rows(connection: sqlite3.Connection, name: str, **conditions: Any) -> Iterator[Row]:
    """The records that meet the conditions, checked, in the order they were added.

    Args:
        connection: to the file.
        name: of the file, for errors.
        **conditions: values of columns; None: any.
    """
    given = {column: value for column, value in conditions.items() if value is not None}
    where = " AND ".join(f"{column} = ?" for column in given)
    found = connection.execute(
        f"SELECT {_COLUMNS} FROM records {f'WHERE {where}' if given else ''} ORDER BY id",
        tuple(given.values()),
    )
    for columns in found:
        yield _checked_row(columns, name)


def counts(connection: sqlite3.Connection, experiment: str | None) -> dict[str, int]:
    """How many records there are in each state that occurs."""
    return dict(
        connection.execute(
            "SELECT state, count(*) FROM records WHERE ?1 IS NULL OR experiment = ?1 "
            "GROUP BY state",
            (experiment,),
        )
    )


def row_of(connection: sqlite3.Connection, name: str, key: str) -> Row:
    """The record with this key.

    Raises:
        UnknownNameError: if there is none.
    """
    found = next(rows(connection, name, key=key), None)
    if found is None:
        raise UnknownNameError(f"{name} holds no record with the key {key!r}; add it first.")
    return found


def row_in_state(
    connection: sqlite3.Connection, name: str, key: str, states: tuple[State, ...], verb: str
) -> Row:
    """The record with this key, if it is in one of the states.

    Raises:
        StateError: if it is in another.
    """
    row = row_of(connection, name, key)
    if row.state not in states:
        expected = " or ".join(states)
        raise StateError(
            f"record {key[:12]} of {row.identity.experiment!r} is {row.state}; only a record that "
            f"is {expected} can be {verb}."
        )
    return row


def set_state(
    connection: sqlite3.Connection,
    row: Row,
    state: State,
    *,
    error: str | None = None,
    seconds: float | None = None,
) -> None:
    """Move a record to a state; to RUNNING: one more attempt, whose versions and time are kept."""
    if state is State.RUNNING:
        keep_versions(connection, row.id)
        keep_time(connection, row.id)
    connection.execute(
        "UPDATE records SET state = ?, attempts = attempts + ?, error = ?, seconds = ? "
        "WHERE id = ?",
        (state.value, state is State.RUNNING, error, seconds, row.id),
    )


def write_content(connection: sqlite3.Connection, row: Row, content: Content) -> None:
    """Add one more chunk to a record."""
    (number,) = connection.execute(
        "SELECT coalesce(max(number) + 1, 0) FROM chunks WHERE record = ?", (row.id,)
    ).fetchone()
    chunk = connection.execute(
        "INSERT INTO chunks (record, number, layout, digest) VALUES (?, ?, ?, ?)",
        (row.id, number, content.layout, content.digest(row.key, number)),
    ).lastrowid
    connection.executemany(
        "INSERT INTO arrays (chunk, position, blob) VALUES (?, ?, ?)",
        ((chunk, position, blob) for position, blob in enumerate(content.blobs)),
    )


def drop_contents(connection: sqlite3.Connection, row: Row) -> None:
    """Remove all chunks of a record, and their arrays with them."""
    connection.execute("DELETE FROM chunks WHERE record = ?", (row.id,))


def contents(connection: sqlite3.Connection, name: str, row: Row) -> list[Content]:
    """The chunks of a record in order, each as it was written.

    Raises:
        DataError: if one is not.
    """
    chunks = connection.execute(
        "SELECT id, number, layout, digest FROM chunks WHERE record = ? ORDER BY number", (row.id,)
    ).fetchall()
    found = []
    for position, (chunk, number, layout, digest) in enumerate(chunks):
        blobs = connection.execute(
            "SELECT blob FROM arrays WHERE chunk = ? ORDER BY position", (chunk,)
        )
        content = Content(layout, tuple(blob for (blob,) in blobs))
        if number != position or content.digest(row.key, number) != digest:
            raise damaged(name, f"the data of record {row.key[:12]} are not those written")
        found.append(content)
    if row.state.has_result and len(found) != 1:
        raise damaged(name, f"the data of record {row.key[:12]} are missing")
    return found


def _checked_row(columns: tuple[Any, ...], name: str) -> Row:
    number, key, experiment, parameters, seed, revision, version, state, *rest = columns
    identity = Identity(experiment, parameters, seed, revision, version)
    if identity.key != key or state not in _STATES:
        raise damaged(name, f"record {number} is not what was written")
    return Row(number, identity, key, json.loads(parameters), State(state), *rest)
