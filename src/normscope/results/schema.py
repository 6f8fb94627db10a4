"""The tables of a store's file: created, compared with those of an opened file; its errors.

A database may hold more than data: views and triggers that run for ever, virtual tables, or tables
of other columns. Only a file with exactly the tables that normscope creates is read. The tables of
versions and times are not part of the schema: older files lack them, readers then find nothing, and
the first record that is started adds them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from normscope.errors import DataError, NormscopeError, StateError

APPLICATION = 0x6E736370  # "nscp", in the file's header
SCHEMA_VERSION = 1
_MOST = 100  # entries of a schema that are read; a store has fewer

_TABLES = (
    """CREATE TABLE records (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        experiment TEXT NOT NULL,
        parameters TEXT NOT NULL,
        seed INTEGER NOT NULL,
        revision INTEGER NOT NULL,
        version TEXT NOT NULL,
        state TEXT NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        error TEXT,
        seconds REAL
    ) STRICT""",
    "CREATE INDEX records_by_experiment ON records (experiment, state)",
    """CREATE TABLE chunks (
        id INTEGER PRIMARY KEY,
        record INTEGER NOT NULL REFERENCES records,
        number INTEGER NOT NULL,
        layout TEXT NOT NULL,
        digest BLOB NOT NULL,
        UNIQUE (record, number)
    ) STRICT""",
    """CREATE TABLE arrays (
        id INTEGER PRIMARY KEY,
        chunk INTEGER NOT NULL REFERENCES chunks ON DELETE CASCADE,
        position INTEGER NOT NULL,
        blob BLOB NOT NULL,
        UNIQUE (chunk, position)
    ) STRICT""",
)
START_TABLES = (
    """CREATE TABLE IF NOT EXISTS environments (
        id INTEGER PRIMARY KEY,
        versions TEXT NOT NULL UNIQUE
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS started_in (
        record INTEGER PRIMARY KEY REFERENCES records,
        environment INTEGER NOT NULL REFERENCES environments
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS started_at (
    record INTEGER PRIMARY KEY REFERENCES records,
    seconds REAL NOT NULL
) STRICT""",
)


class Connection(sqlite3.Connection):
    """A connection to a store's file.

    Attributes:
        name: of the file, for errors.
    """

    name: str


def damaged(name: str, what: str) -> DataError:
    """Error for a file whose content is not what was written.

    Args:
        name: of the file.
        what: is wrong.
    """
    return DataError(
        f"{name} is damaged: {what}; restore it from a copy, or read the other records and compute "
        "this one into a new file."
    )


def is_store(connection: Connection) -> bool:
    """Return whether a file is a store of the present schema; False if it is empty.

    Raises:
        DataError: if it is another program's database, or has other tables.
        StateError: if its schema is of another version.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    tables, name = _tables_in(connection), connection.name
    if application == 0 and schema == 0 and not tables:
        return False
    if application != APPLICATION:
        raise DataError(f"{name} is a database, but not a store of normscope; name another file.")
    if schema != SCHEMA_VERSION:
        age, advice = (
            ("a newer", "update normscope to read it")
            if schema > SCHEMA_VERSION
            else ("an older", "read it with the normscope that wrote it, or start a new file")
        )
        raise StateError(
            f"{name} was written by {age} normscope (schema {schema}, here {SCHEMA_VERSION}); "
            f"{advice}."
        )
    _check_tables(tables, name)
    return True


def _check_tables(tables: set[tuple[str, ...]], name: str) -> None:
    required, optional = _created_by(_TABLES), _created_by((*_TABLES, *START_TABLES))
    if foreign := sorted(tables - optional):
        kind, other, *_ = foreign[0]
        raise DataError(
            f"{name} has the {kind} {other[:40]!r}, which normscope did not write; it may be "
            "forged: name another file, or copy the records that you trust into a new one."
        )
    if missing := sorted(required - tables):
        raise damaged(name, f"it lacks the {missing[0][0]} {missing[0][1]!r}")


def _tables_in(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Return type, name, table and definition of everything in the schema, without layout."""
    found = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema LIMIT ?", (_MOST,)
    )
    return {tuple(" ".join(str(each).split()) for each in row) for row in found}


@cache
def _created_by(statements: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    connection = sqlite3.connect(":memory:")
    try:
        for statement in statements:
            connection.execute(statement)
        return frozenset(_tables_in(connection))
    finally:
        connection.close()


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables, inside the caller's transaction."""
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


@contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Raise errors of SQLite inside the block as errors of normscope.

    Args:
        name: of the file.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(name, error) from error
    except UnicodeDecodeError as error:  # a message of SQLite's that quotes damaged bytes
        raise damaged(name, "SQLite reports an error in its schema") from error


@contextmanager
def reading_data(name: str, key: str) -> Iterator[None]:
    """Raise `DataError` for content that normscope did not write, whatever it breaks.

    Args:
        name: of the file.
        key: of the record that is decoded inside the block.
    """
    try:
        yield
    except NormscopeError:
        raise
    except Exception as error:
        what = f"the data of record {key[:12]} are not in the format of a store"
        reason = " ".join(str(error).split())[:160]
        raise damaged(name, f"{what} ({reason})") from error


def _translated(name: str, error: sqlite3.Error) -> NormscopeError:
    code = primary_code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return not_a_store(name)
    if code == sqlite3.SQLITE_CORRUPT:
        return damaged(name, f"SQLite reports {' '.join(str(error).split())[:160]}")
    if code == sqlite3.SQLITE_INTERRUPT:
        return damaged(name, "a query takes far more steps than a file of its size explains")
    messages = {
        sqlite3.SQLITE_FULL: f"{name} cannot grow, the disk is full; free some space and run "
        "again: finished records are kept.",
        sqlite3.SQLITE_READONLY: f"{name} cannot be written ({error}); check its permissions.",
        sqlite3.SQLITE_PERM: f"{name} cannot be written ({error}); check its permissions.",
        sqlite3.SQLITE_BUSY: f"{name} is locked by another program ({error}); close that program.",
        sqlite3.SQLITE_LOCKED: f"{name} is locked by another program ({error}); close it.",
        sqlite3.SQLITE_CANTOPEN: f"{name} cannot be opened ({error}); check the folder's "
        "permissions.",
        sqlite3.SQLITE_IOERR: f"{name} cannot be read or written ({error}): a full or failing "
        "disk, or a limit on the size of files; finished records are kept.",
    }
    return StateError(messages.get(code, f"{name} cannot be used: {error}."))


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; 0 for an error raised by Python itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def not_a_store(name: str) -> DataError:
    """Error for a file of another kind."""
    return DataError(f"{name} is not a store of normscope; name another file.")
