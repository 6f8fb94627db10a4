"""A sweep under way: cells become records, units are computed by an engine, answers are committed.

Only the parent touches the store. A unit's results are committed in one transaction; a worker that
dies costs the units under way one attempt each, and those are tried again alone, so that the one
that kills its worker is found out. Where the parent itself is the worker, a unit that did not live
to see its end is tried again in a process of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress

import joblib

from normscope.errors import NormscopeError
from normscope.results import Record, State, Store
from normscope.sweeps.cells import Cell, Unit
from normscope.sweeps.engines import LEAST, Call, Engine, open_engine
from normscope.sweeps.work import Failure, Report, Work
from normscope.sweeps.worker import Answer, answer

__all__ = ["Run"]

_DEATH = (
    "the worker died {} times while computing this (killed, or out of memory); "
    "use fewer workers or smaller settings."
)


class Run:
    """A sweep under way.

    Args:
        work: what is computed.
        units: the cells, in the order they should be computed; all become records at once.
        store: of the results.
        max_attempts: how often a unit may lose its worker before it counts as failed.
        threads: of each worker.
        progress: called with a label after each unit.
    """

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
        records = self._records()
        self._states = {each.key: each.state for each in records}
        everything = [key for keys in self._keys for key in keys]
        self._cut_off = {each.key for each in records if _was_cut_off(each)}
        self._found = sum(self._states[key].has_result for key in everything)
        self._total, self._ended = len(everything), self._found
        self.waiting = deque(n for n in range(len(units)) if self._missing(n))
        self._started: set[int] = set()

    def complete(self, engine: Engine) -> None:
        """Go through all units; those that lost their worker once more at the end, alone."""
        if not engine.is_this_process:
            self._go_through(engine, self.waiting)
            return
        suspects = deque(n for n in self.waiting if self._cut_off.intersection(self._keys[n]))
        self._go_through(engine, deque(n for n in self.waiting if n not in suspects))
        if suspects:  # one of them may have killed the sweep before this one
            with open_engine("local", LEAST, self._threads) as isolated:
                self._go_through(isolated, suspects, at_once=1)

    def _go_through(self, engine: Engine, queue: deque[int], at_once: int | None = None) -> None:
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
        turn, over = threading.Lock(), False

        def calls() -> Iterator[Call]:  # may be drawn from by a thread of joblib's
            while True:
                with turn:  # a unit is in the queue, drawn or started, and never in none of them
                    if over or not queue:
                        return
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
            with turn:
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


def _was_cut_off(record: Record) -> bool:
    """Whether an attempt ended with its process, as far as the store can tell."""
    died = record.state is State.FAILED and (record.error or "").startswith(_DEATH[:16])
    return died or (record.state is State.PENDING and record.attempts > 0)
