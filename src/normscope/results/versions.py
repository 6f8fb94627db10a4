"""Versions of the packages that a store's records ran on.

They stand in two tables that older files lack: reading such a file finds none, and the first record
that is started in it adds them. The schema stays the same: nothing else depends on them.
"""

from __future__ import annotations

import json
import platform
import sqlite3
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from normscope import __version__

__all__ = ["keep_versions", "kept_versions", "present_versions"]

_TABLES = (
    """CREATE TABLE IF NOT EXISTS environments (
        id INTEGER PRIMARY KEY,
        versions TEXT NOT NULL UNIQUE
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS started_in (
        record INTEGER PRIMARY KEY REFERENCES records,
        environment INTEGER NOT NULL REFERENCES environments
    ) STRICT""",
)


def present_versions() -> dict[str, str]:
    """The versions that are installed here, by name, told without loading anything."""
    found = {"normscope": __version__}
    for name in ("torch", "numpy"):
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return {**found, "python": platform.python_version()}


def keep_versions(connection: sqlite3.Connection, record: int) -> None:
    """Keep the present versions as those of a record's attempt, inside the caller's transaction.

    Args:
        connection: to the file.
        record: the number of its row.
    """
    for table in _TABLES:
        connection.execute(table)
    versions = _present_text()
    connection.execute("INSERT OR IGNORE INTO environments (versions) VALUES (?)", (versions,))
    connection.execute(
        "INSERT OR REPLACE INTO started_in (record, environment) "
        "SELECT ?, id FROM environments WHERE versions = ?",
        (record, versions),
    )


def kept_versions(connection: sqlite3.Connection, experiment: str) -> list[dict[str, str]]:
    """The versions that the records of an experiment were last started with, each set once.

    Args:
        connection: to the file.
        experiment: its name.

    Returns:
        By package; an empty set if there are records that were started without keeping any.
    """
    begun = "FROM records AS r WHERE r.experiment = ? AND r.attempts > 0"
    has_table = "SELECT count(*) FROM sqlite_schema WHERE name = 'started_in'"
    if not connection.execute(has_table).fetchone()[0]:
        (some,) = connection.execute(f"SELECT count(*) {begun}", (experiment,)).fetchone()
        return [{}] if some else []
    found = connection.execute(
        "SELECT DISTINCT (SELECT versions FROM started_in JOIN environments ON id = environment "
        f"WHERE record = r.id) {begun} ORDER BY r.id",
        (experiment,),
    )
    return [{} if versions is None else json.loads(versions) for (versions,) in found]


@cache
def _present_text() -> str:
    return json.dumps(present_versions(), sort_keys=True)
