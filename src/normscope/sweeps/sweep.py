"""The sweep itself: cells become records, units are computed by an engine, answers are committed.

Only the parent touches the store. A unit's results are committed in one transaction; a worker that
dies costs the units under way one attempt each, and those are tried again alone, so that the one
that kills its worker is found out.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress

import joblib

from normscope.errors import InputError, NormscopeError
from normscope.results import Record, State, Store
from normscope.sweeps.cells import Cell, Unit
from normscope.sweeps.engines import Call, Engine, open_engine
from normscope.sweeps.work import Failure, Report, Work
from normscope.sweeps.worker import Answer, answer

__all__ = ["opened", "sweep"]

_DEATH = (
    "the worker died {} times while computing this (killed, or out of memory); "
    "use fewer workers or smaller settings."
)


@contextmanager
def opened(store: Store | str | os.PathLike[str] | None) -> Iterator[Store]:
    """A store that is given, or one at a path for the time of the block; None: in memory."""
    if isinstance(store, Store):
        with nullcontext(store) as given:
            yield given
        return
    with Store(":memory:" if store is None else store) as own:
        yield own


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
    progress: Callable[[str], None] = lambda label: None,
) -> Report:
    """Compute every cell that has no result yet.

    Args:
        work: what is computed.
        units: the cells, in the order they should be computed.
        store: of the results; cells with a result there are not computed again.
        engine: local, ray or dask, or one that is open already.
        workers: units computed at the same time.
        threads: of each worker; results are equal to the bit for an equal number of threads.
        address: of a Ray or Dask cluster that runs already.
        max_attempts: how often a unit may lose its worker before it counts as failed.
        progress: called with a label after each unit.

    Returns:
        What was done; failures are told, not raised.

    Raises:
        InputError: if a number is below one.
    """
    for name, number in {
        "workers": workers,
        "threads": threads,
        "max_attempts": max_attempts,
    }.items():
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}.")
    begun = time.perf_counter()
    run = _Run(work, units, store, max_attempts, threads, progress)
    if run.waiting and isinstance(engine, Engine):
        run.complete(engine)
    elif run.waiting:
        with open_engine(str(engine), workers, threads, address) as ready:
            run.complete(ready)
    return run.report(time.perf_counter() - begun)


class _Run:
    """A sweep under way."""

    def __init__(
        self,
        work: Work,
        units: Sequence[Unit],
        store: Store,
        max_attempts: int,
        threads: int,
        progress: Callable[[str], None],
    ) -> None:
        self.work, self.units, self.store = work, units, store
        self._max_attempts, self._threads, self._progress = max_attempts, threads, progress
        with store.transaction():
            self._keys = [[self._add(cell) for cell in unit.cells] for unit in units]
        self._states = {each.key: each.state for each in self._records()}
        everything = [key for keys in self._keys for key in keys]
        self._found = sum(self._states[key].has_result for key in everything)
        self._total, self._ended = len(everything), self._found
        self.waiting = deque(n for n in range(len(units)) if self._missing(n))
        self._started: set[int] = set()

    def complete(self, engine: Engine) -> None:
        """Go through all units; those that lost their worker once more at the end, alone."""
        losses: dict[int, int] = {}
        suspects: deque[int] = deque()
        queue, at_once = self.waiting, engine.workers
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
        """What has been done."""
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
        """Compute until the queue is empty or a worker dies; the units that were lost then."""
        drawn: deque[int] = deque()
        over = False

        def calls() -> Iterator[Call]:  # may be drawn from by a thread of joblib's
            while queue and not over:
                number = queue.popleft()
                drawn.append(number)
                if engine.is_this_process:
                    self._start(drawn)
                yield joblib.delayed(answer)(
                    self.work.function, number, self.units[number].cells, self._threads
                )

        try:
            with closing(engine.stream(calls(), at_once)) as answers:
                self._start(drawn)
                for each in answers:
                    with self.store.transaction():  # one write to the disk for all of it
                        self._start(drawn)
                        self._commit(each)
                    self._progress(self._label())
        except engine.lost:
            over = True
            self._start(drawn)
            return sorted(self._started)
        except BaseException:
            over = True
            with suppress(NormscopeError):  # a full disk, say: the next writer does it
                self._release_all()
            raise
        return []

    def _start(self, drawn: deque[int]) -> None:
        """Mark the units drawn meanwhile as running."""
        if not drawn:
            return
        with self.store.transaction():
            while drawn:
                number = drawn.popleft()
                for key in self._missing(number):
                    self.store.start(key)
                self._started.add(number)

    def _release(self, numbers: Sequence[int]) -> None:
        """Units under way are pending again."""
        with self.store.transaction():
            for number in numbers:
                for key in self._missing(number):
                    self.store.release(key)
                self._started.discard(number)

    def _release_all(self) -> None:
        """Whatever the file has as running is pending again, after a failure of unknown extent."""
        with self.store.transaction():
            for record in self.store.select(self.work.experiment, State.RUNNING):
                if record.key in self._states:
                    self.store.release(record.key)

    def _commit(self, each: Answer) -> None:
        """Write an answer; what is known here changes only once it is written."""
        if each.error is not None:
            self._fail(each.number, each.error)
            return
        missing = set(self._missing(each.number))
        results = {
            key: (dataset, State.DIVERGED if self.work.diverged(dataset) else State.FINISHED)
            for key, dataset in zip(self._keys[each.number], each.datasets, strict=True)
            if key in missing
        }
        share = each.seconds / len(each.datasets)  # cells that were trained together share the time
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

    def _label(self) -> str:
        return f"{self._ended} of {self._total} cells"
