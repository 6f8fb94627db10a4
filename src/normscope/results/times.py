"""When a store's records were last started.

The times stand in a table that older files lack, as the versions do: reading such a file finds
none, and the first record that is started in it adds the table. Nothing else depends on them.
"""

from __future__ import annotations

import sqlite3
import time

__all__ = ["keep_time", "kept_times"]

_TABLE = """CREATE TABLE IF NOT EXISTS started_at (
    record INTEGER PRIMARY KEY REFERENCES records,
    seconds REAL NOT NULL
) STRICT"""


def keep_time(connection: sqlite3.Connection, record: int) -> None:
    """Keep the present time as that of a record's attempt, inside the caller's transaction.

    Args:
        connection: to the file.
        record: the number of its row.
    """
    connection.execute(_TABLE)
    connection.execute(
        "INSERT OR REPLACE INTO started_at (record, seconds) VALUES (?, ?)", (record, time.time())
    )


def kept_times(connection: sqlite3.Connection, experiment: str) -> dict[str, float]:
    """When the records of an experiment were last started, by their keys.

    Args:
        connection: to the file.
        experiment: its name.

    Returns:
        Seconds since 1970 (UTC); records that were not started, or by a normscope that kept no
        times, are left out.
    """
    has_table = "SELECT count(*) FROM sqlite_schema WHERE name = 'started_at'"
    if not connection.execute(has_table).fetchone()[0]:
        return {}
    return dict(
        connection.execute(
            "SELECT r.key, s.seconds FROM records AS r JOIN started_at AS s ON s.record = r.id "
            "WHERE r.experiment = ?",
            (experiment,),
        )
    )
