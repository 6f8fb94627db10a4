"""A sweep: cells become records, units are computed by an engine, results are committed.

Only the parent process writes to the store. A unit's results are committed in one transaction. A
worker that dies costs the units under way one attempt each; those are tried again alone, so that
the unit that kills its worker is identified. If the parent itself is the worker, a unit that was
interrupted by its death is tried again in a separate process.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from traceback import extract_tb, format_exception_only

import joblib
import torch
import xarray as xr

from normscope.errors import InputError, NormscopeError
from normscope.interrupts import Undo, interrupt_safe
from normscope.progress import Progress, ProgressCallback, ignore_progress
from normscope.results import Record, State, Store
from normscope.sweeps.engines import MIN_JOBS, Call, Engine, open_engine
from normscope.sweeps.work import Cell, Failure, Report, Unit, Work

_DEATH = (  # stored with the record, and recognized by its beginning
    "the worker died {} times while computing this (killed, or out of memory); "
    "use fewer workers or smaller settings."
)


@contextmanager
def open_store(store: Store | str | os.PathLike[str] | None) -> Iterator[Store]:
    """Yield the given store, or one opened at a path for the block; None: in memory."""
    if isinstance(store, Store):
        yield store
        return
    with Store(":memory:" if store is None else store) as opened:
        yield opened


@interrupt_safe
def sweep(
    work: Work,
    units: Sequence[Unit],
    store: Store,
    *,
    engine: str | Engine = "local",
    workers: int = 1,
    threads: int = 1,
    address: str | None = None,
    max_attempts: int = 3,
    progress: ProgressCallback = ignore_progress,
) -> Report:
    """Compute every cell that has no result yet.

    Args:
        work: what is computed.
        units: the cells, in the order in which they should be computed.
        store: of the results; cells with a result there are not computed again.
        engine: local, ray or dask, or an open engine.
        workers: units computed at the same time.
        threads: of each worker; results are bit-identical for an equal number of threads.
        address: of a running Ray or Dask cluster.
        max_attempts: how often a unit may lose its worker before it counts as failed.
        progress: called with a `Progress` event after each unit.

    Returns:
        The report; failures are listed there, not raised.

    Raises:
        InputError: if a number is below one.
    """
    numbers = {"workers": workers, "threads": threads, "max_attempts": max_attempts}
    for name, number in numbers.items():
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}.")
    begun = time.perf_counter()
    run = _Run(work, units, store, max_attempts, threads, progress)
    if run.waiting and isinstance(engine, Engine):
        run.complete(engine)
    elif run.waiting:
        with open_engine(str(engine), workers, threads, address) as opened:
            run.complete(opened)
    return run.report(time.perf_counter() - begun)


@dataclass(frozen=True)
class Answer:
    """Result of a unit, sent back by a worker.

    Args:
        number: of the unit.
        datasets: one for each cell; empty after a failure.
        error: the message of the failure, if there was one.
        seconds: duration.
    """

    number: int
    datasets: tuple[xr.Dataset, ...]
    error: str | None
    seconds: float


@interrupt_safe
def compute_unit(
    function: Callable[[Sequence[Cell]], list[xr.Dataset]],
    number: int,
    cells: Sequence[Cell],
    threads: int,
) -> Answer:
    """Compute the cells of a unit, in a worker; an exception becomes part of the answer.

    Args:
        function: returns a dataset for each cell.
        number: of the unit.
        cells: of the unit.
        threads: of torch meanwhile.
    """
    begun = time.perf_counter()
    restore_threads = Undo(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(threads)
    try:
        datasets, error = tuple(function(cells)), None
    except Exception as failure:
        datasets, error = (), _describe(failure)
    finally:
        restore_threads()
    return Answer(number, datasets, error, time.perf_counter() - begun)


def _describe(failure: Exception) -> str:
    """Message of a failure, and where it was raised unless it is an error of normscope."""
    if isinstance(failure, NormscopeError):
        return str(failure)
    text = "".join(format_exception_only(failure)).strip()
    frames = extract_tb(failure.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})"  # noqa: PTH119
    return text + (where if frames else "")


class _Run:
    """The state of a running sweep.

    Args:
        work: what is computed.
        units: the cells, in the order in which they should be computed; all become records at once.
        store: of the results.
        max_attempts: how often a unit may lose its worker before it counts as failed.
        threads: of each worker.
        progress: called with an event after each unit.
    """

    def __init__(
        self,
        work: Work,
        units: Sequence[Unit],
        store: Store,
        max_attempts: int,
        threads: int,
        progress: ProgressCallback,
    ) -> None:
        self.work, self.units, self.store = work, units, store
        self._max_attempts, self._threads, self._progress = max_attempts, threads, progress
        with store.transaction():
            self._keys = [[self._add(cell) for cell in unit.cells] for unit in units]
        records = self._records()
        self._states = {each.key: each.state for each in records}
        everything = [key for keys in self._keys for key in keys]
        self._interrupted = {each.key for each in records if _was_interrupted(each)}
        self._found = sum(self._states[key].has_result for key in everything)
        self._total, self._ended = len(everything), self._found
        self.waiting = deque(n for n in range(len(units)) if self._missing(n))
        self._started: set[int] = set()

    def complete(self, engine: Engine) -> None:
        """Compute all units; those that lost their worker again at the end, alone."""
        if not engine.is_this_process:
            self._compute(engine, self.waiting)
            return
        suspects = deque(n for n in self.waiting if self._interrupted.intersection(self._keys[n]))
        self._compute(engine, deque(n for n in self.waiting if n not in suspects))
        if suspects:  # one of them may have killed an earlier sweep
            with open_engine("local", MIN_JOBS, self._threads) as isolated:
                self._compute(isolated, suspects, at_once=1)

    def _compute(self, engine: Engine, queue: deque[int], at_once: int | None = None) -> None:
        losses: dict[int, int] = {}
        suspects: deque[int] = deque()
        at_once = at_once or engine.workers
        while queue or suspects:
            if not queue:
                queue, suspects, at_once = suspects, deque(), 1
            for number in self._stream(engine, queue, at_once):
                losses[number] = losses.get(number, 0) + 1
                if losses[number] < self._max_attempts:
                    suspects.append(number)
                    self._release([number])
                else:
                    self._fail(number, _DEATH.format(losses[number]))

    def report(self, seconds: float) -> Report:
        """Return the report of all cells."""
        failed = {each.key: each.error for each in self._records() if each.state is State.FAILED}
        failures = tuple(
            Failure(cell, failed[key] or "")
            for unit, keys in zip(self.units, self._keys, strict=True)
            for cell, key in zip(unit.cells, keys, strict=True)
            if key in failed
        )
        diverged = sum(self._states[key] is State.DIVERGED for keys in self._keys for key in keys)
        return Report(self._total, self._found, diverged, failures, seconds)

    def _stream(self, engine: Engine, queue: deque[int], at_once: int) -> list[int]:
        """Compute until the queue is empty or a worker dies; return the units that were lost."""
        drawn: deque[int] = deque()
        lock, over = threading.Lock(), False

        def calls() -> Iterator[Call]:  # joblib may draw from another thread
            while True:
                with lock:  # a unit is always in one of: the queue, drawn, started
                    if over or not queue:
                        return
                    number = queue.popleft()
                    drawn.append(number)
                if engine.is_this_process:
                    self._start(drawn)
                yield joblib.delayed(compute_unit)(
                    self.work.function, number, self.units[number].cells, self._threads
                )

        try:
            with closing(engine.stream(calls(), at_once)) as answers:
                self._start(drawn)
                for each in answers:
                    with self.store.transaction():  # one write to the disk
                        self._start(drawn)
                        self._commit(each)
                    self._send_progress()
        except engine.lost:
            with lock:
                over = True
            self._start(drawn)
            return sorted(self._started)
        except BaseException:
            over = True
            with suppress(NormscopeError):  # such as a full disk: the next writer does it
                self._release_all()
            raise
        return []

    def _start(self, drawn: deque[int]) -> None:
        """Mark the units drawn since the last call as running."""
        if not drawn:
            return
        with self.store.transaction():
            while drawn:
                number = drawn.popleft()
                for key in self._missing(number):
                    self.store.start(key)
                self._started.add(number)

    def _release(self, numbers: Sequence[int]) -> None:
        """Set units under way back to pending."""
        with self.store.transaction():
            for number in numbers:
                for key in self._missing(number):
                    self.store.release(key)
                self._started.discard(number)

    def _release_all(self) -> None:
        """Set all running records of this sweep back to pending, after an unexpected failure."""
        with self.store.transaction():
            for record in self.store.select(self.work.experiment, State.RUNNING):
                if record.key in self._states:
                    self.store.release(record.key)

    def _commit(self, each: Answer) -> None:
        """Store an answer; the state of this object changes only after it is written."""
        if each.error is not None:
            self._fail(each.number, each.error)
            return
        missing = set(self._missing(each.number))
        results = {
            key: (dataset, State.DIVERGED if self.work.diverged(dataset) else State.FINISHED)
            for key, dataset in zip(self._keys[each.number], each.datasets, strict=True)
            if key in missing
        }
        share = each.seconds / len(each.datasets)  # of cells that were trained together
        with self.store.transaction():
            for key, (dataset, state) in results.items():
                self.store.finish(key, dataset, state, seconds=share)
        self._states |= {key: state for key, (_, state) in results.items()}
        self._ended += len(results)
        self._started.discard(each.number)

    def _fail(self, number: int, error: str) -> None:
        with self.store.transaction():
            for key in self._missing(number):
                self.store.fail(key, error)
        self._started.discard(number)

    def _missing(self, number: int) -> list[str]:
        """Keys of the unit's cells that have no result."""
        return [key for key in self._keys[number] if not self._states[key].has_result]

    def _add(self, cell: Cell) -> str:
        return self.store.add(self.work.experiment, cell.parameters, cell.seed, self.work.revision)

    def _records(self) -> list[Record]:
        return self.store.select(self.work.experiment)

    def _send_progress(self) -> None:
        self._progress(
            Progress(done=self._ended, total=self._total, unit="cells", kept=self._found)
        )


def _was_interrupted(record: Record) -> bool:
    """Return whether the last attempt ended with its process, as far as the store shows."""
    died = record.state is State.FAILED and (record.error or "").startswith(_DEATH[:16])
    return died or (record.state is State.PENDING and record.attempts > 0)
