"""The store: one SQLite file of records; the contract is in the docstring of the package."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import format_exception_only
from typing import Any, NoReturn, Self

import pandas as pd
import xarray as xr

from normscope.errors import ArgumentTypeError, InputError, NormscopeError, StateError
from normscope.interrupts import interrupt_safe, interrupts_wait
from normscope.results import tables
from normscope.results.chunks import add_chunk_forms, join
from normscope.results.codec import RawDataset, decode, encode, from_raw, to_raw
from normscope.results.database import Database
from normscope.results.grid import Cell, combine, latest_results, no_results_error
from normscope.results.netcdf import write_netcdf
from normscope.results.record import Identity, Record, State, json_value, matches, record_key
from normscope.results.schema import Connection, reading_data
from normscope.results.tables import Row
from normscope.text import Table


class Store:
    """Records of computations in one file; its contract is the docstring of `normscope.results`.

    Args:
        path: of the file, created if it does not exist; ":memory:" for a store in memory.
        read_only: open for reading, beside a writer or other readers.

    Raises:
        InputError: if a store in memory is opened read-only.

    Examples:
        >>> store = Store(":memory:")
        >>> def training() -> xr.Dataset:
        ...     print("training")
        ...     return xr.Dataset({"loss": ("step", [2.0, 1.0])})
        >>> first = store.compute("demo", {"learning_rate": 0.1}, seed=0, function=training)
        training
        >>> again = store.compute("demo", {"learning_rate": 0.1}, seed=0, function=training)
        >>> again["loss"].values.tolist()
        [2.0, 1.0]
    """

    @interrupts_wait
    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        in_memory = path == ":memory:"
        if in_memory and read_only:
            raise InputError("a store in memory begins empty; open it without read_only=True.")
        self.path = None if in_memory else Path(path)
        self.read_only = read_only
        self._database = Database(self.path, read_only)
        self._forms: dict[str, dict[str, str]] = {}  # of the chunks of running records
        self._started: dict[str, float] = {}
        self._key_locks: dict[str, threading.RLock] = {}  # one computation of a key at a time
        self._revision = 1
        if not read_only:  # a killed writer may have left records running
            with self._writing() as connection:
                for row in tables.running(connection):
                    tables.set_state(connection, row, State.PENDING)

    @interrupts_wait
    def add(
        self, experiment: str, parameters: Mapping[str, Any], seed: int, revision: int = 1
    ) -> str:
        """Add a pending record unless it exists; return its key.

        Args:
            experiment: its name.
            parameters: by name; see `record_key` for their types.
            seed: of its random numbers.
            revision: of the experiment's code; a new one makes new records.
        """
        identity = Identity.of(experiment, parameters, seed, revision)
        with self._writing() as connection:
            if tables.insert_record(connection, identity):
                self._database.count(records=1)
        return identity.key

    @interrupts_wait
    def start(self, key: str) -> None:
        """Start an attempt at a pending or failed record; chunks of an earlier one are dropped."""
        with self._record(key, (State.PENDING, State.FAILED), "started") as (connection, row):
            tables.drop_contents(connection, row)
            tables.set_state(connection, row, State.RUNNING)
            self._forget(key)
            self._started[key] = time.perf_counter()

    @interrupts_wait
    def append(self, key: str, dataset: xr.Dataset) -> None:
        """Store a chunk of a running record, durable when the call returns.

        Args:
            key: of the record.
            dataset: with the dimension "step". Variables that it shares with earlier chunks must
                have the same dims, sizes and dtype; those without steps must be equal. A variable
                that some chunks leave out is filled there (NaN; integers become floats).
        """
        raw = to_raw(dataset)
        content = encode(raw)
        with self._record(key, (State.RUNNING,), "appended to") as (connection, row):
            self._forms[key] = add_chunk_forms(self._forms_of(connection, row), raw)
            tables.write_content(connection, row, content)

    @interrupts_wait
    def finish(
        self,
        key: str,
        dataset: xr.Dataset | None = None,
        state: str = State.FINISHED,
        *,
        seconds: float | None = None,
    ) -> None:
        """Store the result of a running record, in one transaction.

        Args:
            key: of the record.
            dataset: the whole result, which replaces the chunks; None: the chunks are the result.
            state: "finished" or "diverged".
            seconds: duration; None: since its start.

        Raises:
            InputError: if the state is another.
            StateError: if there is neither a dataset nor a chunk.
        """
        if state not in (State.FINISHED, State.DIVERGED):
            raise InputError(f"a record ends as 'finished' or 'diverged', got {state!r}.")
        content = None if dataset is None else encode(to_raw(dataset))
        with self._record(key, (State.RUNNING,), "finished") as (connection, row):
            if content is None:
                content = encode(self.read_raw(key))
            tables.drop_contents(connection, row)
            tables.write_content(connection, row, content)
            taken = self._seconds(key) if seconds is None else seconds
            tables.set_state(connection, row, State(state), seconds=taken)
            self._database.count(results=1)
            self._forget(key)

    @interrupts_wait
    def fail(self, key: str, error: str) -> None:
        """Mark a running record as failed.

        Args:
            key: of the record.
            error: its message.
        """
        text = error.encode(errors="backslashreplace").decode()
        with self._record(key, (State.RUNNING,), "failed") as (connection, row):
            seconds = self._seconds(key)
            tables.set_state(connection, row, State.FAILED, error=text, seconds=seconds)
            self._forget(key)

    @interrupts_wait
    def release(self, key: str) -> None:
        """Set a running record back to pending; its chunks are kept."""
        with self._record(key, (State.RUNNING,), "released") as (connection, row):
            tables.set_state(connection, row, State.PENDING)
            self._forget(key)

    @contextmanager
    def revised(self, revision: int) -> Iterator[None]:
        """Set the default revision of `compute` inside the block.

        Args:
            revision: of the code of the experiment that runs meanwhile.

        Yields:
            Nothing.
        """
        before, self._revision = self._revision, revision
        try:
            yield
        finally:
            self._revision = before

    @interrupt_safe
    def compute(
        self,
        experiment: str,
        parameters: Mapping[str, Any],
        seed: int,
        function: Callable[[], xr.Dataset],
        revision: int | None = None,
        *,
        diverged: Callable[[xr.Dataset], bool] | None = None,
    ) -> xr.Dataset:
        """Return the stored result, or compute and store it.

        An exception is recorded as a failure and raised; the next call tries again. Ctrl-C leaves
        the record pending. Two threads that ask for the same result run the function once.

        Args:
            experiment: its name.
            parameters: by name.
            seed: of its random numbers.
            function: computes the result.
            revision: of the experiment's code; None: that of `revised`, or 1.
            diverged: returns whether a result is a divergence; None: never.

        Returns:
            The dataset as read from the file, so that it is the same the first time and later.

        Raises:
            StateError: inside a transaction.
        """
        revision = self._revision if revision is None else revision
        key = record_key(experiment, parameters, seed, revision)
        if self.read_only:
            return self._stored_result(key)
        if self._database.in_transaction:  # others would wait for all of the computation
            raise StateError(
                "compute cannot be part of a transaction; call it before, or use start and finish."
            )
        with self._key_locks.setdefault(key, threading.RLock()):
            with self.transaction():
                self.add(experiment, parameters, seed, revision)
                is_stored = self.get(key).state.has_result
                if not is_stored:
                    self.start(key)
            if not is_stored:
                self._run(key, function, diverged)
        return self.get(key).dataset

    def get(self, key: str) -> Record:
        """Return the record with this key."""
        with self._database.reading() as connection:
            return self._as_record(tables.row_of(connection, key))

    def select(
        self,
        experiment: str | None = None,
        state: str | None = None,
        seed: int | None = None,
        **parameters: Any,
    ) -> list[Record]:
        """Return the records that meet every given condition, in the order they were added.

        Args:
            experiment: the name.
            state: such as "finished".
            seed: of the random numbers.
            **parameters: values of parameters; numbers are compared by value, so 1 finds 1.0.
        """
        wanted = {name: json_value(value, name) for name, value in parameters.items()}
        with self._database.reading() as connection:
            found = tables.select(
                connection,
                experiment,
                None if state is None else State.named(state),
                None if seed is None else json_value(seed, "seed"),
            )
        return [self._as_record(row) for row in found if matches(row.parameters, wanted)]

    def counts(self, experiment: str | None = None) -> dict[State, int]:
        """Number of records in each state."""
        with self._database.reading() as connection:
            found = Counter(row.state for row in tables.select(connection, experiment))
        return {state: found[state] for state in State}

    def versions(self, experiment: str) -> list[dict[str, str]]:
        """Package versions that an experiment's records ran on; empty where none were stored."""
        with self._database.reading() as connection:
            return tables.stored_versions(connection, experiment)

    def times(self, experiment: str) -> dict[str, float]:
        """Last start of an experiment's records by key, in seconds since 1970."""
        with self._database.reading() as connection:
            return tables.stored_times(connection, experiment)

    def read_raw(self, key: str) -> RawDataset:
        """Return the stored variables of a record as plain arrays, checked and joined."""
        with self._database.reading() as connection:
            row = tables.row_of(connection, key)
            found = tables.contents(connection, row)
        if not found:
            raise StateError(
                f"record {key[:12]} of {row.identity.experiment!r} is {row.state} and has no data "
                "yet; finish it, or append a chunk."
            )
        with reading_data(self._database.name, row.key):
            return join([decode(content) for content in found])

    def to_xarray(self, experiment: str, **parameters: Any) -> xr.Dataset:
        """Results of an experiment as one dataset with a label for every setting.

        Every parameter that varies becomes a dimension, and the seed always does; the others are in
        the attribute "parameters". Numbers are in ascending order, other values in the order they
        were added; lists, dicts and mixed values are labelled by their JSON. Missing cells are
        filled (NaN, NaT, ""; integers and booleans become floats then), as are cells with fewer
        steps or other labels than the rest. Of several revisions or versions of the same cell the
        highest revision counts, then the one added last.

        Records that are scattered over this grid, as those of a random search (more than four cells
        for each record), become a list instead: one dimension "record", with the parameters that
        vary and the seed as its labels.

        Args:
            experiment: its name.
            **parameters: keep only the records with these values (``seed=`` and ``state=`` too).
        """
        records = self.select(experiment, **parameters)
        chosen = latest_results(records)
        if not chosen:
            raise no_results_error(self.select(), experiment, records, parameters)
        cells = [Cell(each.parameters, each.seed, self.read_raw(each.key)) for each in chosen]
        planned = [{**each.parameters, "seed": each.seed} for each in records]
        return combine(experiment, cells, planned)

    def to_netcdf(self, path: str | os.PathLike[str], experiment: str) -> None:
        """Write `to_xarray` of an experiment to a NetCDF file, atomically.

        Args:
            path: of the file; an existing one is replaced.
            experiment: its name.
        """
        write_netcdf(self.to_xarray(experiment), path)

    def to_dataframe(self, experiment: str) -> pd.DataFrame:
        """`to_xarray` of an experiment as a table, one row for each combination of labels."""
        return self.to_xarray(experiment).to_dataframe()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Group several calls: all of them are committed at the end of the block, or none.

        Other threads wait meanwhile. Much faster than one by one where thousands are added.
        """
        with self._writing():
            yield

    @interrupts_wait
    def close(self) -> None:
        """Close the file; may be called more than once."""
        self._database.close()

    def _stored_result(self, key: str) -> xr.Dataset:
        record = self.get(key)
        if not record.state.has_result:
            raise StateError(
                f"record {key[:12]} of {record.experiment!r} is {record.state}, and {self!r} "
                "cannot compute it; open it without read_only=True."
            )
        return record.dataset

    def _run(
        self,
        key: str,
        function: Callable[[], xr.Dataset],
        diverged: Callable[[xr.Dataset], bool] | None,
    ) -> None:
        try:
            dataset = function()
            has_diverged = diverged is not None and diverged(dataset)
            self.finish(key, dataset, State.DIVERGED if has_diverged else State.FINISHED)
        except Exception as error:
            try:
                self.fail(key, "".join(format_exception_only(error)).strip())
            except NormscopeError as further:  # such as a full disk: raise the first cause
                error.add_note(f"The failure could not be recorded: {further}")
            raise
        except BaseException:
            if self.get(key).state is State.RUNNING:
                self.release(key)
            raise

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        try:
            with self._database.writing() as connection:
                yield connection
        except BaseException:
            self._forms.clear()  # they may include chunks that were rolled back
            raise

    @contextmanager
    def _record(
        self, key: str, states: tuple[State, ...], verb: str
    ) -> Iterator[tuple[Connection, Row]]:
        """A transaction on one record, which must be in one of the states."""
        with self._writing() as connection:
            row = tables.row_of(connection, key)
            if row.state not in states:
                raise StateError(
                    f"record {key[:12]} of {row.identity.experiment!r} is {row.state}; only a "
                    f"record that is {' or '.join(states)} can be {verb}."
                )
            yield connection, row

    def _forms_of(self, connection: Connection, row: Row) -> dict[str, str]:
        """Forms of the chunks so far; read from the file after a rolled-back transaction."""
        if row.key not in self._forms:
            forms: dict[str, str] = {}
            for content in tables.contents(connection, row):
                with reading_data(self._database.name, row.key):
                    forms = add_chunk_forms(forms, decode(content))
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
        return Record(*named, *state, lambda: self._read_dataset(row))

    def _read_dataset(self, row: Row) -> xr.Dataset:
        raw = self.read_raw(row.key)
        with reading_data(self._database.name, row.key):
            return from_raw(raw)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            "a store cannot be sent to another process; hand the results back to the one that "
            "opened it, or open the file there with read_only=True."
        )

    def __repr__(self) -> str:
        path = ":memory:" if self.path is None else str(self.path)
        return f"Store({path!r}{', read_only=True' if self.read_only else ''})"

    def _repr_html_(self) -> str:
        return Table([{str(k): n for k, n in self.counts().items()}], repr(self)).html()
