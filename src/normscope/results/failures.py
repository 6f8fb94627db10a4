"""What SQLite reports, as one clear sentence."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from normscope.errors import DataError, NormscopeError, StateError

__all__ = ["damaged", "failures_told", "not_a_store", "primary_code"]


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; 0 if the error is Python's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def not_a_store(name: str) -> DataError:
    """The error for a file of something else."""
    return DataError(f"{name} is not a store of normscope; name another file.")


def damaged(name: str, what: str) -> DataError:
    """The error for a file whose content is not what was written.

    Args:
        name: of the file.
        what: is wrong.
    """
    return DataError(
        f"{name} is damaged: {what}; restore it from a copy, or read the other records and compute "
        "this one into a new file."
    )


@contextmanager
def failures_told(name: str) -> Iterator[None]:
    """Errors of SQLite inside the block become errors of normscope.

    Args:
        name: of the file.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(name, error) from error


def _translated(name: str, error: sqlite3.Error) -> NormscopeError:
    code = primary_code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return not_a_store(name)
    if code == sqlite3.SQLITE_CORRUPT:
        return damaged(name, f"SQLite says {error}")
    if code == sqlite3.SQLITE_FULL:
        return StateError(
            f"{name} cannot grow, the disk is full; make room and run again: what was finished "
            "is kept."
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StateError(f"{name} cannot be written ({error}); check its permissions.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StateError(f"{name} is locked by another program for long ({error}); close that.")
    if code == sqlite3.SQLITE_CANTOPEN:
        return StateError(f"{name} cannot be opened ({error}); check the folder's permissions.")
    if code == sqlite3.SQLITE_IOERR:
        return StateError(
            f"{name} cannot be read or written ({error}): a full or failing disk, or a limit on "
            "the size of files; what was finished is kept."
        )
    return StateError(f"{name} cannot be used: {error}.")
