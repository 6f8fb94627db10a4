"""How far a sweep is: read from its file while another process writes it."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from normscope.errors import NormscopeError, StateError
from normscope.report.narrative import common_factor
from normscope.results import Record, State, Store
from normscope.results.lock import WriterLock
from normscope.sweeps.cells import Cell
from normscope.sweeps.diagram import EXPERIMENT
from normscope.sweeps.earlier import earlier_records
from normscope.sweeps.together import GROUP, group_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Status", "is_being_written", "state_counts", "status"]


@dataclass(frozen=True)
class Status:
    """The state of one experiment's cells in a store.

    Args:
        experiment: the name of the records.
        counts: cells in each state; what a sweep that is gone left running is pending.
        seconds: mean duration of the cells that have a result; None: there are none.
        seconds_left: estimate of the time to the end, from the mean duration: at the present pace,
            or with one worker if no process is at work; None: not known.
        failures: (parameters, seed, error) of the failed ones of these cells.
        at_work: whether a process is writing the file.
        divergence_factor: beyond this multiple of its first value a loss counts as diverged; None:
            the cells have none, or not the same.
        earlier: besides the counts, the cells that an earlier version of the user's own files
            computed or began: no sweep of the present files takes or completes them.
    """

    experiment: str
    counts: dict[State, int]
    seconds: float | None
    seconds_left: float | None
    failures: tuple[tuple[dict[str, object], int, str], ...]
    at_work: bool = False
    divergence_factor: float | None = None
    earlier: dict[State, int] = field(default_factory=dict)

    @property
    def cells(self) -> int:
        """How many there are in all, without those of an earlier version."""
        return sum(self.counts.values())

    @property
    def open(self) -> int:
        """How many have no result and have not failed, and can still be computed."""
        return self.counts[State.PENDING] + self.counts[State.RUNNING]

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        values = self.to_dict()
        values.pop("failures")
        return pairs_html(values, "Sweep", "\n".join(error for *_, error in self.failures))

    def to_dataframe(self) -> pd.DataFrame:
        """One row, with the number of the failures."""
        from normscope.results.frame import frame

        return frame([{**self.to_dict(), "failures": len(self.failures)}])

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        return {
            "experiment": self.experiment,
            "cells": self.cells,
            **{str(state): number for state, number in self.counts.items()},
            "seconds_per_cell": self.seconds,
            "seconds_left": self.seconds_left,
            "at_work": self.at_work,
            "divergence_factor": self.divergence_factor,
            "of_earlier_code": sum(self.earlier.values()),
            "failures": [
                {"parameters": parameters, "seed": seed, "error": error}
                for parameters, seed, error in self.failures
            ],
        }


def status(path: str | os.PathLike[str]) -> list[Status]:
    """How far each experiment in a store is, in the order they were added.

    Args:
        path: of the store; a sweep may be writing it.
    """
    with Store(path, read_only=True) as store:
        records = store.select()
    unfinished = any(each.state in (State.PENDING, State.RUNNING) for each in records)
    at_work = unfinished and is_being_written(path)
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.experiment, []).append(record)
    return [_status(name, group, at_work) for name, group in by_name.items()]


def is_being_written(path: str | os.PathLike[str]) -> bool:
    """Whether a process has a store open to write it.

    The state of a cell does not tell: a sweep that was killed leaves cells running.

    Args:
        path: of the store.
    """
    lock = Path(path).resolve()
    if not lock.with_name(f"{lock.name}-lock").exists():
        return False  # looked at first, so that a folder that is only read stays as it is
    try:
        WriterLock(lock).release()
    except StateError as error:
        return "one writer" in str(error)
    return False


def _status(name: str, records: list[Record], at_work: bool) -> Status:
    old = earlier_records(records)
    keys = {each.key for each in old}
    present = [each for each in records if each.key not in keys]
    counts, earlier = state_counts(present, at_work), state_counts(old, at_work)
    mean = _mean_seconds(present)
    left = None
    workers = _units([each for each in present if each.state is State.RUNNING])
    waiting, running = (counts[state] for state in (State.PENDING, State.RUNNING))
    if mean is not None and waiting + running:
        # a cell of a group has a share of its group's time, so cells, not units, are counted
        left = mean * (waiting + running / 2)
        left /= max(workers, 1) if at_work else 1
    failures = tuple(
        (each.parameters, each.seed, each.error or "")
        for each in present
        if each.state is State.FAILED
    )
    factor = common_factor(each.parameters for each in present)
    return Status(name, counts, mean, left, failures, at_work, factor, earlier)


def _mean_seconds(records: Sequence[Record]) -> float | None:
    times = [each.seconds for each in records if each.state.has_result and each.seconds is not None]
    return sum(times) / len(times) if times else None


def state_counts(records: Sequence[Record], at_work: bool) -> dict[State, int]:
    """How many are in each state; with no process at work, as the next writer will find them.

    Args:
        records: of a store.
        at_work: whether a process is writing it.
    """
    counts = dict.fromkeys(State, 0)
    for record in records:
        idle = record.state is State.RUNNING and not at_work
        counts[State.PENDING if idle else record.state] += 1
    return counts


def _units(running: Sequence[Record]) -> int:
    """How many units of work the running cells make: as many as there are workers."""
    alike = Counter(_group(record) for record in running)
    alone = alike.pop(None, 0)
    return alone + sum(math.ceil(count / GROUP) for count in alike.values())


def _group(record: Record) -> object:
    """What a running cell shares with those that are trained with it; None: it stands alone."""
    if record.experiment != EXPERIMENT:
        return None
    try:
        return group_of(Cell(record.parameters, record.seed))
    except (NormscopeError, TypeError):  # records of another program may name anything
        return None
