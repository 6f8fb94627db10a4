"""The connection to a store's file: opened as writer or reader, used by one thread at a time."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from normscope.errors import DataError, StateError
from normscope.results.failures import damaged, failures_told, not_a_store, primary_code
from normscope.results.schema import Kind, create, identify
from normscope.results.writer_lock import WriterLock

__all__ = ["Database"]

_SMALLEST = 512  # bytes of a database
_PATIENCE = 30.0  # seconds to wait for another process that recovers or checkpoints the file


class Database:
    """An open file; every statement goes through `writing` or `reading`.

    Args:
        path: of the file; None: in memory.
        read_only: never change it.
    """

    def __init__(self, path: Path | None, read_only: bool) -> None:
        self.path = path
        self.name = "the store in memory" if path is None else str(path)
        self.read_only = read_only
        self._process = os.getpid()
        self._turn = threading.RLock()
        self._depth = 0
        self._owner = 0  # the thread of the transaction under way
        self._snapshot: tuple[int, int] | None = None  # of a file opened as one that never changes
        self._made_log = False  # by opening to read: SQLite's empty log and its index
        self._lock: WriterLock | None = None
        self._connection: sqlite3.Connection | None = None
        try:
            with failures_told(self.name):
                self._connection = self._open_to_read() if read_only else self._open_to_write()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of the block or none of it is in the file, durable at the end.

        A block inside another belongs to the outer one.

        Raises:
            StateError: if the store was opened to read.
        """
        if self.read_only:
            raise StateError(f"{self.name} was opened with read_only=True; open it without.")
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the file, whatever a writer does meanwhile."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is inside a transaction."""
        return self._depth > 0 and self._owner == threading.get_ident()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._turn, failures_told(self.name):
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
        """Close the file; more than once does no harm."""
        with self._turn:
            connection, self._connection = self._connection, None
            if self._process != os.getpid():
                return  # a forked child: connection and lock are its parent's
            if connection is not None:
                connection.close()
                self._tidy()
            if self._lock is not None:
                self._lock.release()

    def _tidy(self) -> None:
        """Leave the folder as a reader found it.

        SQLite leaves the log of a reader's making where it is. Its last connection that may write
        removes it, under SQLite's own locks: with any other open, it stays, and nothing is lost.
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
                f"{self.name} was opened by process {self._process}; open it anew in this one, "
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
            timeout=_PATIENCE,
            isolation_level=None,  # transactions begin and end where this file says
            check_same_thread=False,  # the lock of `_transaction` serves instead
        )
        # A flipped byte may leave no valid text: let the checksums find it and tell whose it is.
        connection.text_factory = lambda text: text.decode(errors="replace")
        return connection

    def _open_to_write(self) -> sqlite3.Connection:
        if self.path is not None:
            self._make_folder(self.path.parent)
            self._lock = WriterLock(self.path.resolve())
            if self.path.exists() and 0 < self.path.stat().st_size < _SMALLEST:
                raise not_a_store(self.name)  # SQLite would take it for an empty one
        self._connection = connection = self._connect("?mode=rwc")
        kind = identify(connection, self.name)
        self._check_size(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # else a commit may wait for the disk
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if self.path is not None and mode != "wal":
            raise StateError(
                f"the file system of {self.name} does not allow reading while writing (SQLite's "
                "WAL); choose a folder on a local disk."
            )
        if kind is Kind.EMPTY:
            with self._transaction("BEGIN IMMEDIATE"):
                create(connection)
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        self._find()
        self._snapshot = None
        self._made_log = not any(self._beside(end).exists() for end in ("wal", "shm"))
        connection = self._connect("?mode=ro")
        try:
            kind = identify(connection, self.name)
        except sqlite3.OperationalError as error:
            connection.close()
            no_index = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if primary_code(error) not in no_index or self._stamp()[1] == 0 or self._has_log():
                raise
            # The folder does not let SQLite make its index of the log. Without a log there is
            # nothing to index: read the file as it is, and open it anew when it changes.
            self._snapshot, self._made_log = self._stamp(), False
            connection = self._connect("?immutable=1")
            kind = identify(connection, self.name)
        self._connection = connection
        self._check_size(connection)
        if kind is Kind.EMPTY:
            raise not_a_store(self.name)
        return connection

    def _check_size(self, connection: sqlite3.Connection) -> None:
        """Tell a file that was cut off within its last page, which SQLite does not see."""
        if self.path is None or self._has_log():  # the log may hold what the file lacks
            return
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        if self._stamp()[1] < pages * page_size:
            raise damaged(self.name, "it ends early")

    def _find(self) -> None:
        try:
            found = self.path is not None and self.path.is_file()
        except OSError as error:
            raise DataError(f"{self.name} cannot be reached ({error.strerror}).") from error
        if not found:
            raise DataError(f"there is no store at {self.name}; check the path.")

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"the folder {folder} cannot be made ({error.strerror}); choose another."
            ) from error

    def _stamp(self) -> tuple[int, int]:
        assert self.path is not None
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size

    def _has_log(self) -> bool:
        log = self._beside("wal")
        return log.exists() and log.stat().st_size > 0

    def _beside(self, end: str) -> Path:
        """A file that SQLite keeps beside the store's."""
        assert self.path is not None
        path = self.path.resolve()
        return path.with_name(f"{path.name}-{end}")
