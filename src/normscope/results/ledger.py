"""Records and their states, kept in a database; `Store` says what its callers may rely on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import xarray as xr

from normscope.errors import InputError, StateError
from normscope.results import tables
from normscope.results.chunks import Form, fitting_forms, join
from normscope.results.content import Pieces, assemble, decode, encode, pieces_of
from normscope.results.database import Database
from normscope.results.identity import Identity, plain
from normscope.results.record import Record, State, meets
from normscope.results.tables import Row
from normscope.results.times import kept_times
from normscope.results.versions import kept_versions

__all__ = ["Ledger"]


class Ledger:
    """The part of a store that keeps records.

    Args:
        path: of the file; None: in memory.
        read_only: never change it.
    """

    def __init__(self, path: Path | None, read_only: bool) -> None:
        self._database = Database(path, read_only)
        self._forms: dict[str, dict[str, Form]] = {}  # of the chunks of running records
        self._started: dict[str, float] = {}
        if not read_only:
            self._give_up_running()

    def add(
        self, experiment: str, parameters: Mapping[str, Any], seed: int, revision: int = 1
    ) -> str:
        """Make a record, pending, unless it is there; in either case its key.

        Args:
            experiment: its name.
            parameters: by name; see `record_key` for what they may be.
            seed: of its random numbers.
            revision: of the experiment's code; a new one makes new records.
        """
        identity = Identity.of(experiment, parameters, seed, revision)
        with self._writing() as connection:
            return tables.insert_record(connection, identity)

    def start(self, key: str) -> None:
        """Begin an attempt at a pending or failed record; chunks of an earlier one are dropped."""
        with self._record(key, (State.PENDING, State.FAILED), "started") as (connection, row):
            tables.drop_contents(connection, row)
            tables.set_state(connection, row, State.RUNNING)
            self._forget(key)
            self._started[key] = time.perf_counter()

    def append(self, key: str, dataset: xr.Dataset) -> None:
        """Keep a chunk of a running record, durable when the call returns.

        Args:
            key: of the record.
            dataset: with the dimension "step". Variables that it shares with earlier chunks must
                be of the same dims, sizes and dtype; those without steps must be equal. A variable
                that some chunks leave out has holes there (NaN; integers become floats).
        """
        pieces = pieces_of(dataset)
        content = encode(pieces)
        with self._record(key, (State.RUNNING,), "appended to") as (connection, row):
            self._forms[key] = fitting_forms(self._forms_of(connection, row), pieces)
            tables.write_content(connection, row, content)

    def finish(
        self,
        key: str,
        dataset: xr.Dataset | None = None,
        state: str = State.FINISHED,
        *,
        seconds: float | None = None,
    ) -> None:
        """Give a running record its result, all of it or nothing.

        Args:
            key: of the record.
            dataset: the whole result, in place of the chunks; None: the chunks are the result.
            state: "finished" or "diverged".
            seconds: it took; None: since its start.

        Raises:
            InputError: if the state is another.
            StateError: if there is neither a dataset nor a chunk.
        """
        if state not in (State.FINISHED, State.DIVERGED):
            raise InputError(f"a record ends as 'finished' or 'diverged', got {state!r}.")
        content = None if dataset is None else encode(pieces_of(dataset))
        with self._record(key, (State.RUNNING,), "finished") as (connection, row):
            if content is None:
                content = encode(self.pieces(key))
            tables.drop_contents(connection, row)
            tables.write_content(connection, row, content)
            taken = self._seconds(key) if seconds is None else seconds
            tables.set_state(connection, row, State(state), seconds=taken)
            self._forget(key)

    def fail(self, key: str, error: str) -> None:
        """Mark a running record as failed.

        Args:
            key: of the record.
            error: what happened.
        """
        text = error.encode(errors="backslashreplace").decode()
        with self._record(key, (State.RUNNING,), "failed") as (connection, row):
            seconds = self._seconds(key)
            tables.set_state(connection, row, State.FAILED, error=text, seconds=seconds)
            self._forget(key)

    def release(self, key: str) -> None:
        """Give a running record up without a verdict: pending again, with the chunks so far."""
        with self._record(key, (State.RUNNING,), "released") as (connection, row):
            tables.set_state(connection, row, State.PENDING)
            self._forget(key)

    def get(self, key: str) -> Record:
        """The record with this key."""
        with self._database.reading() as connection:
            return self._as_record(tables.row_of(connection, self._database.name, key))

    def select(
        self,
        experiment: str | None = None,
        state: str | None = None,
        seed: int | None = None,
        **parameters: Any,
    ) -> list[Record]:
        """The records that meet every condition given, in the order they were added.

        Args:
            experiment: the name.
            state: such as "finished".
            seed: of the random numbers.
            **parameters: values of parameters; numbers are compared by value, so 1 finds 1.0.
        """
        conditions = {
            "experiment": experiment,
            "state": None if state is None else State.named(state).value,
            "seed": None if seed is None else plain(seed, "seed"),
        }
        wanted = {name: plain(value, name) for name, value in parameters.items()}
        with self._database.reading() as connection:
            found = list(tables.rows(connection, self._database.name, **conditions))
        return [self._as_record(row) for row in found if meets(row.parameters, wanted)]

    def counts(self, experiment: str | None = None) -> dict[State, int]:
        """How many records are in each state."""
        with self._database.reading() as connection:
            found = tables.counts(connection, experiment)
        return {state: found.get(state, 0) for state in State}

    def versions(self, experiment: str) -> list[dict[str, str]]:
        """The versions that an experiment's records ran on; an empty set where none were kept."""
        with self._database.reading() as connection:
            return kept_versions(connection, experiment)

    def times(self, experiment: str) -> dict[str, float]:
        """When an experiment's records were last started, in seconds since 1970, by their keys."""
        with self._database.reading() as connection:
            return kept_times(connection, experiment)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several calls as one: all of them are in the file when the block ends, or none.

        Other threads wait meanwhile. Much faster than one by one where thousands are added.
        """
        with self._writing():
            yield

    def close(self) -> None:
        """Close the file; more than once does no harm."""
        self._database.close()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        try:
            with self._database.writing() as connection:
                yield connection
        except BaseException:
            self._forms.clear()  # they may know of chunks that were rolled back
            raise

    @contextmanager
    def _record(
        self, key: str, states: tuple[State, ...], verb: str
    ) -> Iterator[tuple[Connection, Row]]:
        """A transaction on one record, which must be in one of the states."""
        with self._writing() as connection:
            row = tables.row_in_state(connection, self._database.name, key, states, verb)
            yield connection, row

    def _give_up_running(self) -> None:
        """What a writer that died left running is pending again."""
        with self._writing() as connection:
            for row in list(tables.rows(connection, self._database.name, state=State.RUNNING)):
                tables.set_state(connection, row, State.PENDING)

    def _forms_of(self, connection: Connection, row: Row) -> dict[str, Form]:
        """The forms of the chunks so far; read anew if a transaction was rolled back."""
        if row.key not in self._forms:
            forms: dict[str, Form] = {}
            for content in tables.contents(connection, self._database.name, row):
                forms = fitting_forms(forms, decode(content))
            self._forms[row.key] = forms
        return self._forms[row.key]

    def _forget(self, key: str) -> None:
        self._forms.pop(key, None)
        self._started.pop(key, None)

    def _seconds(self, key: str) -> float | None:
        started = self._started.get(key)
        return None if started is None else time.perf_counter() - started

    def _as_record(self, row: Row) -> Record:
        of = row.identity
        named = (row.key, of.experiment, row.parameters, of.seed, of.revision, of.version)
        state = (row.state, row.attempts, row.error, row.seconds)
        return Record(*named, *state, lambda: assemble(self.pieces(row.key)))

    def pieces(self, key: str) -> Pieces:
        """What was stored under the key as it lies in the file, checked and joined."""
        with self._database.reading() as connection:
            row = tables.row_of(connection, self._database.name, key)
            found = tables.contents(connection, self._database.name, row)
        if not found:
            raise StateError(
                f"record {key[:12]} of {row.identity.experiment!r} is {row.state} and has no data "
                "yet; finish it, or append a chunk."
            )
        return join([decode(content) for content in found])
