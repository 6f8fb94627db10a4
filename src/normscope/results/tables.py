"""The rows of a store's tables: written, and checked when read, since a file may be forged."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from normscope import __version__
from normscope.errors import DataError, UnknownNameError
from normscope.results.codec import Content
from normscope.results.lock import Written
from normscope.results.record import Identity, State
from normscope.results.schema import START_TABLES, Connection, damaged

_STATES = {str(state): state for state in State}
_COLUMNS = (
    "id, key, experiment, parameters, seed, revision, version, state, attempts, error, seconds"
)
_AT_ONCE = 500  # numbers in one query
_LATEST = 253402300800.0  # start of the year 10000, in seconds since 1970
_TYPES: tuple[type | tuple[type, type], ...] = (  # of the columns; faster to check than unions
    *(int, str, str, str, int, int, str, str, int),
    (str, type(None)),
    (float, type(None)),
)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse)


class Row(NamedTuple):
    """One row of the records; a tuple, which is made faster than an object."""

    id: int
    identity: Identity
    key: str
    parameters: dict[str, Any]
    state: State
    attempts: int
    error: str | None
    seconds: float | None


def insert_record(connection: Connection, identity: Identity) -> bool:
    """Add a pending record unless it exists; return whether it was added."""
    added = connection.execute(
        "INSERT INTO records (key, experiment, parameters, seed, revision, version, state) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
        (identity.key, *vars(identity).values(), State.PENDING.value),
    )
    return added.rowcount == 1


def select(
    connection: Connection,
    experiment: str | None = None,
    state: State | None = None,
    seed: int | None = None,
) -> list[Row]:
    """Return the records that meet the conditions, checked, in the order they were added.

    All records are read and compared with the index, so that damage to either cannot hide one.

    Args:
        connection: to the file.
        experiment: of the records; None: any.
        state: of the records; None: any.
        seed: of the records; None: any. Records that are damaged and have another seed are spared.
    """
    query = f"SELECT {_COLUMNS} FROM records NOT INDEXED ORDER BY id"
    everything = connection.execute(query).fetchall()
    if seed is None:
        _compare_with_index(connection, len(everything))
    found = []
    for values in everything:
        try:
            row = _row(connection.name, values)
        except DataError:
            if seed is None or values[4] == seed or _is_whole_with(values, experiment, seed):
                raise
            continue
        of = row.identity
        pairs = ((experiment, of.experiment), (state, row.state), (seed, of.seed))
        if all(wanted is None or wanted == value for wanted, value in pairs):
            found.append(row)
    return found


def _compare_with_index(connection: Connection, records: int) -> None:
    query = "SELECT total(1) FROM records INDEXED BY records_by_experiment"  # unlike count, bounded
    (entries,) = connection.execute(query).fetchone()
    if entries != records:
        what = f"it has {records} records and {entries:.0f} in their index"
        raise damaged(connection.name, what)


def running(connection: Connection) -> list[Row]:
    """Return the records that are running, without a look at the others."""
    query = f"SELECT {_COLUMNS} FROM records WHERE state = ? ORDER BY id"
    found = connection.execute(query, (State.RUNNING.value,)).fetchall()
    return [_row(connection.name, values) for values in found]


def states(connection: Connection) -> list[tuple[int, str]]:
    """Return number and state of every record, from the index alone."""
    return connection.execute(
        "SELECT id, state FROM records INDEXED BY records_by_experiment"
    ).fetchall()


def attempts(connection: Connection, numbers: Sequence[int]) -> dict[int, int]:
    """Return the attempts of records by their numbers."""
    return dict(_in_batches(connection, "SELECT id, attempts FROM records WHERE id IN", numbers))


def numbered(connection: Connection, numbers: Sequence[int]) -> list[Row]:
    """Return the records of these numbers, checked, in the order they were added.

    Args:
        connection: to the file.
        numbers: the ids of the rows.

    Raises:
        DataError: if one is damaged or missing.
    """
    found = _in_batches(connection, f"SELECT {_COLUMNS} FROM records WHERE id IN", sorted(numbers))
    if len(found) != len(numbers):
        what = f"its index names {len(numbers)} records, of which {len(found)} exist"
        raise damaged(connection.name, what)
    return [_row(connection.name, values) for values in found]


def start_times(connection: Connection, numbers: Sequence[int]) -> dict[int, float]:
    """Return the last start of records by their number, in seconds since 1970 (UTC).

    Records that were never started, or by a normscope that stored no times, are left out.

    Args:
        connection: to the file.
        numbers: the ids of the rows.

    Raises:
        DataError: if a time is not one that was written.
    """
    if not _has_table(connection, "started_at"):
        return {}
    query = "SELECT record, seconds FROM started_at WHERE record IN"
    found: dict[int, float] = dict(_in_batches(connection, query, sorted(numbers)))
    if not all(isinstance(each, float) and 0 <= each < _LATEST for each in found.values()):
        raise damaged(connection.name, "its start times are not those written")
    return found


def stored_times(connection: Connection, experiment: str) -> dict[str, float]:
    """Return the last start of an experiment's records by key; see `start_times`."""
    query = "SELECT id, key FROM records WHERE experiment = ?"
    keys: dict[int, str] = dict(connection.execute(query, (experiment,)))
    return {keys[number]: at for number, at in start_times(connection, list(keys)).items()}


def _in_batches(
    connection: Connection, query: str, numbers: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Return the rows of a query that ends on IN, for as many numbers as one query may have."""
    found: list[tuple[Any, ...]] = []
    for start in range(0, len(numbers), _AT_ONCE):
        some = numbers[start : start + _AT_ONCE]
        found += connection.execute(f"{query} ({','.join('?' * len(some))})", some).fetchall()
    return found


def _row(name: str, values: tuple[Any, ...]) -> Row:
    """Return a row of the table, checked against its key.

    Raises:
        DataError: if it is damaged.
    """
    if not all(map(isinstance, values, _TYPES)):
        raise damaged(name, f"record {values[0]!r} is not what was written")
    number, key, experiment, parameters, seed, revision, package, state, *rest = values
    identity = Identity(experiment, parameters, seed, revision, package)
    known = _STATES.get(state)
    if identity.key != key or known is None:
        raise damaged(name, f"record {number} is not what was written")
    settings = _parsed_object(name, parameters, f"the parameters of record {number}")
    return Row(number, identity, key, settings, known, *rest)


def _is_whole_with(values: tuple[Any, ...], experiment: str | None, seed: int) -> bool:
    """Return whether a damaged row would be whole if it had this experiment and seed."""
    _, key, present, parameters, _, revision, package, *_ = values
    wanted = present if experiment is None else experiment
    return bool(Identity(wanted, parameters, seed, revision, package).key == key)


def _parsed_object(name: str, text: str, what: str) -> dict[str, Any]:
    """Return the JSON object of a text that may be forged.

    Args:
        name: of the file.
        text: the JSON.
        what: it is.

    Raises:
        DataError: if it is not a JSON object.
    """
    try:
        found = _STRICT.decode(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise damaged(name, f"{what} are not JSON") from error
    if not isinstance(found, dict):
        raise damaged(name, f"{what} are not a JSON object")
    return found


def written(connection: Connection) -> Written:
    """Return how much a store holds."""
    results = ", ".join(f"'{state}'" for state in State if state.has_result)
    found = connection.execute(
        f"SELECT count(*), total(state IN ({results})) FROM records"
    ).fetchone()
    return Written(*map(int, found))


def row_of(connection: Connection, key: str) -> Row:
    """Return the record with this key.

    Raises:
        UnknownNameError: if there is none.
    """
    name, query = connection.name, f"SELECT {_COLUMNS} FROM records WHERE key = ?"
    found = connection.execute(query, (key,)).fetchone()
    if found is not None:
        return _row(name, found)
    if connection.execute("SELECT 1 FROM records NOT INDEXED WHERE key = ?", (key,)).fetchone():
        raise damaged(name, f"the index of its records lacks {key[:12]}")
    raise UnknownNameError(f"{name} holds no record with the key {key!r}; add it first.")


def set_state(
    connection: Connection,
    row: Row,
    state: State,
    *,
    error: str | None = None,
    seconds: float | None = None,
) -> None:
    """Move a record to a state; RUNNING counts an attempt and stores its versions and time."""
    if state is State.RUNNING:
        _note_start(connection, row.id)
    connection.execute(
        "UPDATE records SET state = ?, attempts = attempts + ?, error = ?, seconds = ? "
        "WHERE id = ?",
        (state.value, state is State.RUNNING, error, seconds, row.id),
    )


def write_content(connection: Connection, row: Row, content: Content) -> None:
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


def drop_contents(connection: Connection, row: Row) -> None:
    """Remove all chunks of a record; their arrays are removed by the cascade."""
    connection.execute("DELETE FROM chunks WHERE record = ?", (row.id,))


def contents(connection: Connection, row: Row, first: int = 0) -> list[Content]:
    """Return the chunks of a record in order, each checked against its digest.

    Args:
        connection: to the file.
        row: the record.
        first: number of the first chunk.

    Raises:
        DataError: if one is damaged or missing.
    """
    chunks = connection.execute(
        "SELECT id, number, layout, digest FROM chunks WHERE record = ? AND number >= ? "
        "ORDER BY number",
        (row.id, first),
    ).fetchall()
    of_record = f"the data of record {row.key[:12]} are"
    found = []
    for position, (chunk, number, layout, digest) in enumerate(chunks, first):
        blobs = connection.execute(
            "SELECT blob FROM arrays WHERE chunk = ? ORDER BY position", (chunk,)
        )
        content = Content(layout, tuple(blob for (blob,) in blobs))
        plain = isinstance(layout, str) and all(isinstance(each, bytes) for each in content.blobs)
        if not plain or number != position or content.digest(row.key, number) != digest:
            raise damaged(connection.name, f"{of_record} not those written")
        found.append(content)
    if row.state.has_result and first + len(found) != 1:
        raise damaged(connection.name, f"{of_record} missing")
    return found


def present_versions() -> dict[str, str]:
    """Installed versions by package, found without importing the packages."""
    found = {"normscope": __version__}
    for name in ("torch", "numpy"):
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return {**found, "python": platform.python_version()}


@cache
def _versions_json() -> str:
    return json.dumps(present_versions(), sort_keys=True)


def _note_start(connection: Connection, record: int) -> None:
    """Store the present versions and time of a record's attempt, in the caller's transaction."""
    for table in START_TABLES:
        connection.execute(table)
    versions = _versions_json()
    connection.execute("INSERT OR IGNORE INTO environments (versions) VALUES (?)", (versions,))
    connection.execute(
        "INSERT OR REPLACE INTO started_in (record, environment) "
        "SELECT ?, id FROM environments WHERE versions = ?",
        (record, versions),
    )
    connection.execute(
        "INSERT OR REPLACE INTO started_at (record, seconds) VALUES (?, ?)", (record, time.time())
    )


def stored_versions(connection: Connection, experiment: str) -> list[dict[str, str]]:
    """Versions that the records of an experiment were last started with, each set once.

    Args:
        connection: to the file.
        experiment: its name.

    Returns:
        By package; an empty dict if records were started without storing any.
    """
    begun = "FROM records AS r WHERE r.experiment = ? AND r.attempts > 0"
    if not _has_table(connection, "started_in"):
        some = connection.execute(f"SELECT 1 {begun} LIMIT 1", (experiment,)).fetchone()
        return [{}] if some else []
    found = connection.execute(
        "SELECT DISTINCT (SELECT versions FROM started_in JOIN environments ON id = environment "
        f"WHERE record = r.id) {begun} ORDER BY r.id",
        (experiment,),
    )
    parsed = [
        {} if text is None else _parsed_object(connection.name, text, "the stored versions")
        for (text,) in found
    ]
    return [{package: str(number) for package, number in each.items()} for each in parsed]


def _has_table(connection: Connection, table: str) -> bool:
    query = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?"
    return connection.execute(query, (table,)).fetchone() is not None
