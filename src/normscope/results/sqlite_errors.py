"""Errors of SQLite as errors of normscope, each in one sentence."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from normscope.errors import DataError, NormscopeError, StateError
from normscope.results.schema import damaged


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
