"""The connection to a store's file: one writer or many readers, one thread at a time."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from normscope.errors import DataError, NormscopeError, StateError
from normscope.results.lock import WriterLock
from normscope.results.tables import create_tables, damaged, is_store

_SMALLEST_FILE = 512  # bytes of a database
_TIMEOUT = 30.0  # seconds to wait for another process that recovers or checkpoints the file


class Database:
    """An open file; every statement goes through `writing` or `reading`.

    Args:
        path: of the file; None: in memory.
        read_only: never write to it.
    """

    def __init__(self, path: Path | None, read_only: bool) -> None:
        self.path = path
        self.name = "the store in memory" if path is None else str(path)
        self.read_only = read_only
        self._process = os.getpid()
        self._mutex = threading.RLock()
        self._depth = 0
        self._owner = 0  # the thread of the transaction under way
        self._snapshot: tuple[int, int] | None = None  # stamp of a file opened as immutable
        self._made_log = False  # whether opening to read created SQLite's empty log and its index
        self._lock: WriterLock | None = None
        self._connection: sqlite3.Connection | None = None
        try:
            with translate_errors(self.name):
                self._connection = self._open_to_read() if read_only else self._open_to_write()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: committed and durable at the end of the block, or rolled back.

        A block inside another is part of the outer one.

        Raises:
            StateError: if the store is read-only.
        """
        if self.read_only:
            raise StateError(f"{self.name} was opened with read_only=True; open it without.")
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: one consistent state of the file."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is inside a transaction."""
        return self._depth > 0 and self._owner == threading.get_ident()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._mutex, translate_errors(self.name):
            connection = self._usable()
            if self._depth:
                yield connection
                return
            connection.execute(begin)
            self._depth += 1
            self._owner = threading.get_ident()
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # some failures have rolled back already
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    def close(self) -> None:
        """Close the file; may be called more than once."""
        with self._mutex:
            connection, self._connection = self._connection, None
            if self._process != os.getpid():
                return  # a forked child: connection and lock are its parent's
            if connection is not None:
                connection.close()
                self._remove_log()
            if self._lock is not None:
                self._lock.release()

    def _remove_log(self) -> None:
        """Remove the log that opening to read created.

        SQLite removes it when the last connection that may write closes, under its own locks: if
        another connection is open, the log stays, and nothing is lost.
        """
        if not self._made_log or self._has_log():
            return
        with suppress(sqlite3.Error, OSError):
            connection = self._connect("?mode=rw")
            try:
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            finally:
                connection.close()

    def _usable(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StateError(f"{self.name} is closed; open it again.")
        if self._process != os.getpid():
            raise StateError(
                f"{self.name} was opened by process {self._process}; open it again in this one, "
                "with read_only=True."
            )
        if self._snapshot is not None and (self._snapshot != self._stamp() or self._has_log()):
            self._connection.close()
            self._connection = self._open_to_read()
        return self._connection

    def _connect(self, options: str) -> sqlite3.Connection:
        where = ":memory:" if self.path is None else f"{self.path.resolve().as_uri()}{options}"
        connection = sqlite3.connect(
            where,
            uri=self.path is not None,
            timeout=_TIMEOUT,
            isolation_level=None,  # transactions begin and end in `_transaction`
            check_same_thread=False,  # guarded by the mutex of `_transaction`
        )
        # A flipped byte may leave invalid UTF-8: let the checksums find it and name the record.
        connection.text_factory = lambda text: text.decode(errors="replace")
        return connection

    def _open_to_write(self) -> sqlite3.Connection:
        if self.path is not None:
            _make_folder(self.path.parent)
            self._lock = WriterLock(self.path.resolve())
            if self.path.exists() and 0 < self.path.stat().st_size < _SMALLEST_FILE:
                raise _not_a_store(self.name)  # SQLite would take it for an empty one
        self._connection = connection = self._connect("?mode=rwc")
        has_tables = is_store(connection, self.name)
        self._check_size(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # else a commit may wait for the disk
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if self.path is not None and mode != "wal":
            raise StateError(
                f"the file system of {self.name} does not allow reading while writing (SQLite's "
                "WAL); choose a folder on a local disk."
            )
        if not has_tables:
            with self._transaction("BEGIN IMMEDIATE"):
                create_tables(connection)
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        self._check_exists()
        self._snapshot = None
        self._made_log = not any(self._beside(end).exists() for end in ("wal", "shm"))
        connection = self._connect("?mode=ro")
        try:
            has_tables = is_store(connection, self.name)
        except sqlite3.OperationalError as error:
            connection.close()
            no_index = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if _primary_code(error) not in no_index or self._stamp()[1] == 0 or self._has_log():
                raise
            # SQLite cannot create its index of the log in this folder. Without a log there is
            # nothing to index: read the file as immutable, and reopen it when it changes.
            self._snapshot, self._made_log = self._stamp(), False
            connection = self._connect("?immutable=1")
            has_tables = is_store(connection, self.name)
        self._connection = connection
        self._check_size(connection)
        if not has_tables:
            raise _not_a_store(self.name)
        return connection

    def _check_size(self, connection: sqlite3.Connection) -> None:
        """Detect a file truncated within its last page, which SQLite does not notice."""
        if self.path is None or self._has_log():  # the log may hold what the file lacks
            return
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        if self._stamp()[1] < pages * page_size:
            raise damaged(self.name, "it ends early")

    def _check_exists(self) -> None:
        try:
            found = self.path is not None and self.path.is_file()
        except OSError as error:
            raise DataError(f"{self.name} cannot be reached ({error.strerror}).") from error
        if not found:
            raise DataError(f"there is no store at {self.name}; check the path.")

    def _stamp(self) -> tuple[int, int]:
        assert self.path is not None
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size

    def _has_log(self) -> bool:
        log = self._beside("wal")
        return log.exists() and log.stat().st_size > 0

    def _beside(self, end: str) -> Path:
        """Path of a file that SQLite keeps beside the store."""
        assert self.path is not None
        path = self.path.resolve()
        return path.with_name(f"{path.name}-{end}")


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


def _translated(name: str, error: sqlite3.Error) -> NormscopeError:
    code = _primary_code(error)
    if code == sqlite3.SQLITE_NOTADB:
        return _not_a_store(name)
    if code == sqlite3.SQLITE_CORRUPT:
        return damaged(name, f"SQLite reports {error}")
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


def _primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; 0 for an error raised by Python itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _not_a_store(name: str) -> DataError:
    return DataError(f"{name} is not a store of normscope; name another file.")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"the folder {folder} cannot be created ({error.strerror}); choose another."
        ) from error
