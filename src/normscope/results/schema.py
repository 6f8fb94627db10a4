"""The tables of a store's file, and how such a file is told from others."""

from __future__ import annotations

import sqlite3
from enum import Enum

from normscope.errors import DataError, StateError

__all__ = ["SCHEMA_VERSION", "Kind", "create", "identify"]

APPLICATION = 0x6E736370  # "nscp", in the file's header
SCHEMA_VERSION = 1

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


class Kind(Enum):
    """What a file is."""

    EMPTY = "nothing was ever written to it"
    STORE = "a store of the present schema"


def identify(connection: sqlite3.Connection, name: str) -> Kind:
    """What the file of a connection is, if it can be used.

    Raises:
        DataError: if it is a database of something else.
        StateError: if its schema is of another version.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application == 0 and version == 0 and tables == 0:
        return Kind.EMPTY
    if application != APPLICATION:
        raise DataError(f"{name} is a database, but not a store of normscope; name another file.")
    if version != SCHEMA_VERSION:
        age, advice = (
            ("a newer", "update normscope to read it")
            if version > SCHEMA_VERSION
            else ("an older", "read it with the normscope that wrote it, or start a new file")
        )
        raise StateError(
            f"{name} was written by {age} normscope (schema {version}, here {SCHEMA_VERSION}); "
            f"{advice}."
        )
    return Kind.STORE


def create(connection: sqlite3.Connection) -> None:
    """Make the tables, inside the transaction of the caller."""
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
