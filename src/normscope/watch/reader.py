"""Poll one store: changed records, and the series that views draw.

States are read at once. Results are read newest first, for a part of a second in each reading, so
that a view of a large store fills while it is shown.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from normscope.errors import NormscopeError
from normscope.results import State
from normscope.results.following import Following
from normscope.results.lock import is_locked
from normscope.results.tables import Row
from normscope.watch.grids import RATE
from normscope.watch.records import DIVERGED, FAILED, FINISHED, PENDING, RUNNING, Records
from normscope.watch.series import Series

MOST_CURVES = 8  # distinguishable lines in one panel
MOST_SCOPES = 6
_MOST_RUNNING = 32  # running records of an experiment whose chunks are read
_BUDGET = 0.4  # seconds of one reading for results
_LONGEST = 1.0  # seconds of one reading for states, so that a view of a large store fills
_ROWS = 100  # results read between two checks of the time


class Reader:
    """The content of one store, as of the last reading.

    Args:
        path: of the store; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiments: dict[str, Records] = {}
        self.series: dict[str, dict[int, Series]] = {}  # by experiment and number of the record
        self.problem = ""  # why the last reading failed
        self.is_waiting = False  # whether the store has not been created yet
        self.at_work = False  # whether a process has the store open for writing
        self.total = 0  # records in the file
        self._following: Following | None = None
        self._unread: dict[str, list[int]] = {}  # results by experiment, the newest last

    @property
    def known(self) -> int:
        """Number of records read so far."""
        return sum(map(len, self.experiments.values()))

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read at once."""
        return not self.problem and (self.known < self.total or any(self._unread.values()))

    def read(self) -> bool:
        """Read what has changed; return whether something has."""
        before = self._state
        try:
            self.is_waiting = not self.known and not self.path.exists()
            changed = not self.is_waiting and self._read()
            self.problem = ""
        except (NormscopeError, sqlite3.Error, OSError) as error:
            self.close()
            self.problem, changed = str(error), False
        self.at_work = not self.problem and is_locked(self.path)
        return changed or before != self._state

    @property
    def _state(self) -> tuple[str, bool, bool, int]:
        return self.problem, self.is_waiting, self.at_work, self.total

    def close(self) -> None:
        """Close the file; the next reading opens it again."""
        following, self._following = self._following, None
        if following is not None:
            following.close()

    def _read(self) -> bool:
        if self._following is None:  # perhaps another file at the same path
            self._following = Following(self.path)
            self.experiments, self.series, self._unread = {}, {}, {}
            self.total = self._following.count()
        changed = self._read_states(self._following)
        self.total = max(self.total, self.known)
        if self.known < self.total:  # states first, of all records
            return True
        return changed | self._read_results() | self._read_running()

    def _read_states(self, following: Following) -> bool:
        """Read changed records for a second at most; return whether there were any."""
        end, changed = time.monotonic() + _LONGEST, False
        while time.monotonic() < end and (rows := following.changes()):
            self._update(rows, following.starts(rows))
            changed = True
        return changed

    def _update(self, rows: Sequence[Row], starts: Mapping[int, float]) -> None:
        by_name: dict[str, list[Row]] = {}
        for row in rows:
            by_name.setdefault(row.identity.experiment, []).append(row)
        for name, some in by_name.items():
            if name not in self.experiments:
                self.experiments[name], self._unread[name] = Records(name), []
            self.experiments[name].update(some, starts)
            # a failed or interrupted attempt may have left chunks
            self._unread[name] += [
                row.id for row in some if row.attempts and row.state is not State.RUNNING
            ]

    def _read_results(self) -> bool:
        """Read results within the budget; return whether there were any."""
        end, found = time.monotonic() + _BUDGET, False
        for name, unread in self._unread.items():
            if not self._needs_losses(name):
                del unread[: -max(MOST_CURVES, MOST_SCOPES)]
            while unread and (not found or time.monotonic() < end):
                some, found = unread[-_ROWS:], True
                del unread[-_ROWS:]
                self._read_rows(name, some)
        return found

    def _needs_losses(self, name: str) -> bool:
        rate = self.experiments[name].columns.get(RATE)
        return rate is not None and rate.varies

    def _read_rows(self, name: str, numbers: list[int]) -> None:
        assert self._following is not None
        records, kept = self.experiments[name], self.series.setdefault(name, {})
        for row in sorted(self._following.rows(numbers), key=lambda each: -each.id):
            series = Series(row.attempts, row.state.has_result)
            for chunk in self._following.chunks(row):
                series.add(chunk)
            records.losses[records.positions[row.id]] = series.test_loss
            if series.lines:
                kept[row.id] = series
        self._drop_old(name)

    def _read_running(self) -> bool:
        """Read new chunks of running records; return whether there were any."""
        assert self._following is not None
        found = False
        for name, records in self.experiments.items():
            positions = records.newest(RUNNING, most=_MOST_RUNNING)
            numbers = [records.numbers[position] for position in positions]
            for row in self._following.rows(numbers) if numbers else ():
                found |= self._read_chunks(name, row)
            if found:
                self._drop_old(name)
        return found

    def _read_chunks(self, name: str, row: Row) -> bool:
        assert self._following is not None
        kept = self.series.setdefault(name, {})
        series = kept.get(row.id)
        if series is None or series.attempts != row.attempts or series.has_result:
            series = Series(row.attempts, has_result=False)
        chunks = self._following.chunks(row, series.next_chunk)
        for chunk in chunks:
            series.add(chunk)
        if series.lines:
            kept[row.id] = series
        return bool(chunks)

    def _drop_old(self, name: str) -> None:
        """Keep the series that a view shows: those of running records, and the newest others."""
        records, kept = self.experiments[name], self.series[name]
        for is_scope, most in ((True, MOST_SCOPES), (False, MOST_CURVES)):
            numbers = [number for number, series in kept.items() if series.is_scope is is_scope]
            for number in self._in_order(records, numbers)[most:]:
                del kept[number]

    def _in_order(self, records: Records, numbers: list[int]) -> list[int]:
        """Return numbers of records: running, then others, then diverged; each newest first."""

        def rank(number: int) -> tuple[bool, bool, float, int]:
            position = records.positions[number]
            started, state = records.started[position], records.states[position]
            since = 0.0 if np.isnan(started) else started
            return state == RUNNING, state != DIVERGED, since, number

        return sorted(numbers, key=rank, reverse=True)

    def shown(self, name: str, is_scope: bool) -> list[tuple[int, Series]]:
        """Return position and series of the records to show, in their order.

        Args:
            name: of the experiment.
            is_scope: scopes, or other trainings.
        """
        records, kept = self.experiments[name], self.series.get(name, {})
        numbers = [number for number, each in kept.items() if each.is_scope is is_scope]
        return [
            (records.positions[number], kept[number]) for number in self._in_order(records, numbers)
        ]


def seconds_left(records: Records, now: float) -> float | None:
    """Estimate the time to the last record at the present pace; None if it is not known.

    The pace is that of the records that have ended since the last pause: their number over the
    time since the first of them was started. It includes parallel workers and trainings in groups.

    Args:
        records: of a store that a process is writing.
        now: in seconds since 1970.
    """
    states, started = records.state_codes(), np.array(records.started)
    ended = np.isin(states, (FINISHED, DIVERGED, FAILED)) & ~np.isnan(started)
    waiting, running = int((states == PENDING).sum()), int((states == RUNNING).sum())
    if not ended.any() or not waiting + running:
        return None
    longest = float(np.nan_to_num(np.array(records.seconds)[ended]).max())
    pause = max(_PAUSE, 10 * longest)
    recent = np.sort(started[ended])[-_RECENT:]
    gaps = np.flatnonzero(np.diff(recent) > pause)
    session = recent[gaps[-1] + 1 :] if len(gaps) else recent
    if now - session[-1] > pause:
        return None
    pace = (len(session) + running / 2) / max(now - session[0], 1e-3)
    return float((waiting + running / 2) / pace)


_PAUSE = 60.0  # seconds without a start that may be a pause between two runs of a sweep
_RECENT = 500  # records that determine the pace
