"""The connection to a store's file: one writer or many readers, one thread at a time."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import methodcaller
from pathlib import Path

from normscope.errors import DataError, StateError
from normscope.results.lock import WriterLock, Written, left_by_writer
from normscope.results.schema import (
    Connection,
    create_tables,
    damaged,
    is_store,
    not_a_store,
    primary_code,
    translate_errors,
)
from normscope.results.tables import written
from normscope.text import plural
from normscope.warn import warn

_SMALLEST_FILE = 512  # bytes of a database
_TIMEOUT = 30.0  # seconds to wait for another process that recovers or checkpoints the file
# A call may take a step of SQLite's for every byte of the file, and some more; it takes a tenth of
# that. In a forged file pages may refer to one another, so that a query would never end.
_FREE_STEPS = 1_000_000
_STEPS = 10_000  # between two checks


class Database:
    """An open file; every statement goes through `writing` or `reading`.

    Args:
        path: of the file; None: in memory.
        read_only: never write to it.
        timeout: seconds to wait for another process that has locked the file.
    """

    def __init__(self, path: Path | None, read_only: bool, timeout: float = _TIMEOUT) -> None:
        self.name = "the store in memory" if path is None else str(path)
        self.path = None if path is None else Path(os.path.realpath(path))  # for any folder
        self.read_only = read_only
        self._timeout = timeout
        self._process = os.getpid()
        self._mutex = threading.RLock()
        self._depth = 0
        self._owner = 0  # the thread of the transaction under way
        self._snapshot: tuple[int, int] | None = None  # stamp of a file opened as immutable
        self._opened: dict[Path, os.stat_result] = {}  # the files that must stay in place
        self._checks = 0  # of the steps of a call
        self._made_log = False  # whether opening to read created SQLite's empty log and its index
        self._lock: WriterLock | None = None
        self._written = self._counted = Written(0, 0)  # committed; in the transaction under way
        self._connection: Connection | None = None
        try:
            with translate_errors(self.name):
                self._open_to_read() if read_only else self._open_to_write()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[Connection]:
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
    def reading(self) -> Iterator[Connection]:
        """A read transaction: one consistent state of the file."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is inside a transaction."""
        return self._depth > 0 and self._owner == threading.get_ident()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Connection]:
        with self._mutex, translate_errors(self.name):
            connection = self._usable()
            self._checks = 0
            if self._depth:
                yield connection
                return
            connection = self._follow_file(connection)
            connection.execute(begin)
            self._depth += 1
            self._owner = threading.get_ident()
            self._counted = self._written
            try:
                yield connection
                connection.execute("COMMIT")
                self._note_written()
            except BaseException:
                if connection.in_transaction:  # some failures have rolled back already
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    def count(self, records: int = 0, results: int = 0) -> None:
        """Count what the transaction under way adds.

        Args:
            records: new ones.
            results: records that are finished.
        """
        counted = self._counted
        self._counted = Written(counted.records + records, counted.results + results)

    def _note_written(self) -> None:
        """Keep how much is on the disk now, to notice after a crash if some of it is missing."""
        if self._counted != self._written and self._lock is not None:
            with suppress(OSError):  # such as a full disk: what is stored is stored
                self._lock.note(self._counted)
        self._written = self._counted

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

    def __del__(self) -> None:
        """Close the connection of a store left behind; Python 3.13 warns otherwise."""
        connection = getattr(self, "_connection", None)
        if connection is not None and self._process == os.getpid():
            connection.close()

    def _remove_log(self) -> None:
        """Remove the log that opening to read created.

        SQLite removes it when the last connection that may write closes, under its own locks: if
        another connection is open, the log stays, and nothing is lost.
        """
        if not self._made_log or self._has_log():
            return
        with suppress(sqlite3.Error, OSError, UnicodeDecodeError):  # of a damaged schema, too
            connection = self._connect("?mode=rw")
            try:
                connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
            finally:
                connection.close()

    def _usable(self) -> Connection:
        if self._connection is None:
            raise StateError(f"{self.name} is closed; open it again.")
        if self._process != os.getpid():
            raise StateError(
                f"{self.name} was opened by process {self._process}; open it again in this one, "
                "with read_only=True."
            )
        return self._connection

    def _follow_file(self, connection: Connection) -> Connection:
        """Check that the file is in place; open it again if it was opened as immutable."""
        if self._snapshot is None:
            self._check_files()
        elif self._snapshot != self._stamp() or self._has_log():
            connection.close()
            connection = self._open_to_read()
        return connection

    def _connect(self, options: str) -> Connection:
        where = ":memory:" if self.path is None else f"{self.path.as_uri()}{options}"
        connection = sqlite3.connect(
            where,
            uri=self.path is not None,
            timeout=self._timeout,
            isolation_level=None,  # transactions begin and end in `_transaction`
            check_same_thread=False,  # guarded by the mutex of `_transaction`
            factory=Connection,
        )
        connection.name = self.name
        try:
            connection.execute("PRAGMA trusted_schema = OFF")  # its schema calls no functions
        except BaseException:
            connection.close()
            raise
        if self.path is not None:
            connection.set_progress_handler(self._count_steps, _STEPS)
        # A flipped byte may leave invalid UTF-8: let the checksums find it and name the record.
        connection.text_factory = methodcaller("decode", errors="replace")
        return connection

    def _count_steps(self) -> bool:
        """Return whether to stop the query under way."""
        self._checks += 1
        taken = self._checks * _STEPS
        files = (_stat(each) for each in (Path(str(self.path)), self._beside("wal")))
        return taken > _FREE_STEPS and taken > _FREE_STEPS + sum(f.st_size for f in files if f)

    def _open_to_write(self) -> Connection:
        if self.path is None:
            self._connection = self._connect("")
        else:
            _make_folder(self.path.parent)
            self._lock = WriterLock(self.path)
            if self.path.exists() and 0 < self.path.stat().st_size < _SMALLEST_FILE:
                raise not_a_store(self.name)  # SQLite would take it for an empty one
            self._connection = self._connect("?mode=rwc")
        connection = self._connection
        has_tables = is_store(connection)
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
        if self.path is not None and self._lock is not None:
            self._check_whole(connection, self._lock.left)
            self._written = written(connection)
            self._lock.note(self._written)
            self._note_files(self.path)
        return connection

    def _open_to_read(self) -> Connection:
        path = self._check_exists()
        self._snapshot = None
        self._made_log = not any(self._beside(end).exists() for end in ("wal", "shm"))
        left = left_by_writer(path)  # before the file is read, to which a writer may be adding
        self._connection = connection = self._connect("?mode=ro")
        try:
            has_tables = is_store(connection)
        except sqlite3.OperationalError as error:
            connection.close()
            no_index = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if primary_code(error) not in no_index or self._stamp()[1] == 0 or self._has_log():
                raise
            # SQLite cannot create its index of the log in this folder. Without a log there is
            # nothing to index: read the file as immutable, and reopen it when it changes.
            self._snapshot, self._made_log = self._stamp(), False
            self._connection = connection = self._connect("?immutable=1")
            has_tables = is_store(connection)
        self._check_size(connection)
        if not has_tables:
            raise not_a_store(self.name)
        if self._snapshot is None:
            self._check_whole(connection, left)
        self._note_files(path)
        return connection

    def _check_size(self, connection: Connection) -> None:
        """Detect a file truncated within its last page, which SQLite does not notice."""
        if self.path is None or self._has_log():  # the log may hold what the file lacks
            return
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        if self._stamp()[1] < pages * page_size:
            raise damaged(self.name, "it ends early")

    def _check_whole(self, connection: Connection, left: Written | None) -> None:
        """Warn if a killed writer has written more than is there, as after damage to the log."""
        if left is None:
            return
        found = written(connection)
        lost = max(left.records - found.records, left.results - found.results)
        if lost > 0:
            warn(
                f"{self.name} was not closed by its last writer, and {plural(lost, 'record')} that "
                f"it had written are missing or unfinished: {self._beside('wal').name} is damaged "
                "or was removed; run again what is missing."
            )

    def _note_files(self, path: Path) -> None:
        """Remember which files are open; the log stays in place for a writer only."""
        files = (path,) if self.read_only else (path, self._beside("wal"))
        self._opened = {each: each.stat() for each in files}

    def _check_files(self) -> None:
        """Raise if an open file was deleted, moved or replaced: what is written would be lost."""
        for path, opened in self._opened.items():
            present = _stat(path)
            if present is None or not os.path.samestat(present, opened):
                raise StateError(
                    f"{path} was deleted, moved or replaced while the store was open, so nothing "
                    "more can be kept there; put it back or name another file, and run again."
                )

    def _check_exists(self) -> Path:
        try:
            if self.path is not None and self.path.is_file():
                return self.path
        except OSError as error:
            raise DataError(f"{self.name} cannot be reached ({error.strerror}).") from error
        raise DataError(f"there is no store at {self.name}; check the path.")

    def _stamp(self) -> tuple[int, int]:
        status = self._check_exists().stat()
        return status.st_mtime_ns, status.st_size

    def _has_log(self) -> bool:
        log = self._beside("wal")
        return log.exists() and log.stat().st_size > 0

    def _beside(self, end: str) -> Path:
        """Path of a file that SQLite keeps beside the store."""
        return Path(f"{self.path}-{end}")


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"the folder {folder} cannot be created ({error.strerror}); choose another."
        ) from error
