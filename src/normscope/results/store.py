"""The store: one SQLite file of records, written by one process and read by many.

Contract
--------
**Records.** A record is what one call of an experiment gave: experiment, parameters, seed, revision
of the experiment and version of the package, of which the key is a hash. Adding it twice is adding
it once. Its states::

    pending -> running -> finished | diverged      (results: never changed again)
       ^          |-----> failed -> running        (the next attempt)
       '----------'  interrupted

**Who owns what.** The file belongs to at most one writing `Store` at a time, whichever process or
thread; a second one gets an error that names the first's process. The right is a lock of the
operating system on the file ``<path>-lock`` and ends with the process, however that ends. Within
the process all threads may use the store. It cannot be carried into another process: workers hand
their results to the parent, or open the file to read. Only the store writes its tables.

**What is durable when.** Every call that changes the store is one transaction, on the disk when
the call returns (SQLite's WAL, synchronous=FULL): a crash of the process or of the machine loses
nothing that was reported. `append` makes each chunk of steps durable by itself; `finish` replaces
the chunks by the whole result and sets the state at once. `transaction` makes several calls one.

**What a crash leaves.** All that was reported, and nothing half done: at most the call under way is
lost. Records that were running are pending again when the next writer opens the file, their
attempts and chunks kept; readers see them as running until then. Ctrl-C inside `compute` does the
same at once. What an attempt left behind, after a crash or a failure, is there to be read until the
record is started again.

**Who may read.** Any number of processes with ``read_only=True``, while the writer writes. Each
call sees the last committed state; the dataset of a running record is its chunks so far. Reading
changes no record, and works in a folder that cannot be written, unless a crash left a log there
that must be recovered first.

**What is kept.** Arrays as zlib-compressed npy blobs, everything else as strict JSON; nothing is
pickled, so reading a file cannot run code. A dataset comes back to the bit: dimensions,
coordinates, variables, dtypes, byte order, NaN payloads, attributes; not its ``encoding``, and
texts that were objects come back as texts of fixed width. Every dataset carries a checksum bound to
its record, and every record is checked against its key: damage is reported by `DataError`, never
returned as data. A file of another schema or program is refused untouched.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any, NoReturn, Self

import xarray as xr

from normscope.errors import ArgumentTypeError, InputError, NormscopeError, StateError
from normscope.results.export import latest_results, nothing_to_combine, write_netcdf
from normscope.results.grid import Cell, combine
from normscope.results.identity import record_key
from normscope.results.ledger import Ledger
from normscope.results.notebook import table_html
from normscope.results.record import State

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Store"]


class Store(Ledger):
    """Records of computations in one file; the module's docstring is its contract.

    Args:
        path: of the file, made if it is not there; ":memory:" for one that ends with the store.
        read_only: open for reading, beside a writer or other readers.

    Raises:
        InputError: if a store in memory is to be read only.

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

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        in_memory = path == ":memory:"
        if in_memory and read_only:
            raise InputError("a store in memory begins empty; open it without read_only=True.")
        self.path = None if in_memory else Path(path)
        self.read_only = read_only
        super().__init__(self.path, read_only)
        self._turns: dict[str, threading.RLock] = {}  # one computation of a key at a time
        self._revision = 1

    @contextmanager
    def revised(self, revision: int) -> Iterator[None]:
        """Let `compute` take this revision where it is given none.

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
        """The stored result, or that of the function, which is then stored.

        An exception is recorded as a failure and goes on; the next call tries again. Ctrl-C leaves
        the record pending. Two threads that ask for the same result run the function once.

        Args:
            experiment: its name.
            parameters: by name.
            seed: of its random numbers.
            function: computes the result.
            revision: of the experiment's code; None: that of `revised`, or 1.
            diverged: says whether a result is one of divergence; None: it never is.

        Returns:
            What the file holds, so that a result is the same the first time and later.

        Raises:
            StateError: inside a transaction.
        """
        revision = self._revision if revision is None else revision
        if self.read_only:
            return self._known(record_key(experiment, parameters, seed, revision))
        if self._database.in_transaction:  # others would wait for all of the computation
            raise StateError(
                "compute cannot be part of a transaction; call it before, or use start and finish."
            )
        key = record_key(experiment, parameters, seed, revision)
        with self._turns.setdefault(key, threading.RLock()):
            with self.transaction():
                self.add(experiment, parameters, seed, revision)
                known = self.get(key).state.has_result
                if not known:
                    self.start(key)
            if not known:
                self._run(key, function, diverged)
        return self.get(key).dataset

    def to_xarray(self, experiment: str, **parameters: Any) -> xr.Dataset:
        """The results of an experiment as one dataset with a label for every setting.

        Every parameter that varies becomes a dimension, and the seed always does; the others are in
        the attribute "parameters". Numbers are in ascending order, other values in the order they
        were added; lists, dicts and mixed values are labelled by their JSON text. Cells without a
        result have holes (NaN, NaT, ""; integers and truth values become floats then); so have
        those with fewer steps, or other labels, than the rest. Of several revisions or versions of
        the same cell the highest revision counts, then the one added last.

        Args:
            experiment: its name.
            **parameters: keep only the records with these values (``seed=`` and ``state=`` too).
        """
        records = self.select(experiment, **parameters)
        chosen = latest_results(records)
        if not chosen:
            raise nothing_to_combine(self.select(), experiment, records, parameters)
        cells = [Cell(each.parameters, each.seed, self.pieces(each.key)) for each in chosen]
        return combine(experiment, cells)

    def to_netcdf(self, path: str | os.PathLike[str], experiment: str) -> None:
        """Write `to_xarray` of an experiment to a NetCDF file, all of it or nothing.

        Args:
            path: of the file; one that is there is replaced.
            experiment: its name.
        """
        write_netcdf(self.to_xarray(experiment), path)

    def to_dataframe(self, experiment: str) -> pd.DataFrame:
        """`to_xarray` of an experiment as a table, one row for each combination of labels."""
        return self.to_xarray(experiment).to_dataframe()

    def _known(self, key: str) -> xr.Dataset:
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
            except NormscopeError as further:  # the disk is full, say: the first cause goes on
                error.add_note(f"The failure could not be recorded: {further}")
            raise
        except BaseException:
            if self.get(key).state is State.RUNNING:
                self.release(key)
            raise

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
        return table_html([{str(k): n for k, n in self.counts().items()}], repr(self))
