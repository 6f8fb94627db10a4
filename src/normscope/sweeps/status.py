"""State and cost of a sweep: what its file holds, read while it is written, and the time to go."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch

from normscope.errors import NormscopeError
from normscope.report.narrative import common_factor
from normscope.results import Record, State, Store
from normscope.results.lock import is_locked
from normscope.results.record import canonical_json
from normscope.sweeps.cell import GROUP, group_key
from normscope.sweeps.custom import outdated_records
from normscope.sweeps.diagram import TRAININGS
from normscope.sweeps.settings import Training
from normscope.sweeps.work import Cell, Unit, Work
from normscope.text import Rendered, Table
from normscope.training import sgd, train

_SECONDS = 0.5  # of measuring steps, for each kind of network
_LEAST_SECONDS = 0.1
_ALL_SECONDS = 4.0  # for all kinds
_WARM_UP = 3  # steps, which are slower
_NOT_TIMED = ("gamma", "learning_rate", "epochs")  # have no effect on the duration of a step


@dataclass(frozen=True, repr=False)
class Status(Rendered):
    """The state of one experiment's cells in a store.

    Args:
        experiment: the name of the records.
        counts: cells in each state; cells that a killed sweep left running are pending.
        seconds: mean duration of the cells that have a result; None: there are none.
        seconds_left: estimate of the time to the end, from the mean duration: at the present pace,
            or with one worker if no process is at work; None: not known.
        failures: (parameters, seed, error) of the failed cells.
        at_work: whether a process is writing the file.
        divergence_factor: multiple of its first value beyond which a loss counts as diverged; None:
            the cells have none, or not the same.
        earlier: counts of the cells computed or started by an earlier version of the user's files,
            which are not part of the other counts and will not be completed.
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
        """Number of cells, without those of an earlier version."""
        return sum(self.counts.values())

    @property
    def open(self) -> int:
        """Number of cells that have no result and have not failed."""
        return self.counts[State.PENDING] + self.counts[State.RUNNING]

    def to_dataframe(self) -> pd.DataFrame:
        """One row, with the number of failures."""
        return super().to_dataframe().assign(failures=len(self.failures))

    def _table(self) -> Table:
        values = self.to_dict()
        values.pop("failures")
        return Table(values, "Sweep", [error for *_, error in self.failures])

    def to_dict(self) -> dict[str, Any]:
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
    """Return the state of each experiment in a store, in the order they were added.

    Args:
        path: of the store; a sweep may be writing it.
    """
    with Store(path, read_only=True) as store:
        records = store.select()
    unfinished = any(each.state in (State.PENDING, State.RUNNING) for each in records)
    at_work = unfinished and is_locked(path)  # a killed sweep leaves records running
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.experiment, []).append(record)
    return [_status(name, group, at_work) for name, group in by_name.items()]


def state_counts(records: Sequence[Record], at_work: bool) -> dict[State, int]:
    """Count records by state; if no process is at work, running ones count as pending.

    Args:
        records: of a store.
        at_work: whether a process is writing it.
    """
    counts = dict.fromkeys(State, 0)
    for record in records:
        idle = record.state is State.RUNNING and not at_work
        counts[State.PENDING if idle else record.state] += 1
    return counts


def _status(name: str, records: list[Record], at_work: bool) -> Status:
    outdated = outdated_records(records)
    keys = {each.key for each in outdated}
    present = [each for each in records if each.key not in keys]
    counts = state_counts(present, at_work)
    failures = tuple(
        (each.parameters, each.seed, each.error or "")
        for each in present
        if each.state is State.FAILED
    )
    times = [each.seconds for each in present if each.state.has_result and each.seconds is not None]
    mean = sum(times) / len(times) if times else None
    left = None
    waiting, running = (counts[state] for state in (State.PENDING, State.RUNNING))
    if mean is not None and waiting + running:
        # a cell of a group has a share of its group's time, so cells, not units, are counted
        workers = _count_units([each for each in present if each.state is State.RUNNING])
        left = mean * (waiting + running / 2) / (max(workers, 1) if at_work else 1)
    return Status(
        name,
        counts,
        mean,
        left,
        failures,
        at_work,
        common_factor(each.parameters for each in present),
        state_counts(outdated, at_work),
    )


def _count_units(running: Sequence[Record]) -> int:
    """Number of units of work that the running cells form: the number of workers."""
    sizes = Counter(_group_key(record) for record in running)
    alone = sizes.pop(None, 0)
    return alone + sum(math.ceil(count / GROUP) for count in sizes.values())


def _group_key(record: Record) -> object:
    if record.experiment != TRAININGS.experiment:
        return None
    try:
        return group_key(Cell(record.parameters, record.seed))
    except (NormscopeError, TypeError):  # records of another program may hold anything
        return None


# Cost


@dataclass(frozen=True)
class TimeEstimate:
    """Expected cost of a sweep.

    Args:
        cells: number of all cells.
        open_cells: those without a result yet.
        steps: of the longest training; None: not a sweep of trainings.
        seconds_per_step: of the slowest network, measured here; None: not a sweep of trainings.
        seconds: to the end, if no cell diverges: those that do take less. None: not known.
    """

    cells: int
    open_cells: int
    steps: int | None
    seconds_per_step: float | None
    seconds: float | None


def open_cells(work: Work, units: Sequence[Unit], store: Store | None) -> list[Cell]:
    """Return the cells that have no result in the store."""
    records = [] if store is None else store.select(work.experiment)
    ended = {each.key for each in records if each.state.has_result}
    return [cell for unit in units for cell in unit.cells if work.key(cell) not in ended]


def estimate(
    work: Work, units: Sequence[Unit], store: Store | None, workers: int, threads: int
) -> TimeEstimate:
    """Estimate the time of a phase diagram: steps of every open cell times a measured step.

    Args:
        work: what is computed.
        units: of the sweep.
        store: with the results so far; None: none.
        workers: trainings at the same time.
        threads: of each worker.

    Returns:
        The time if no cell diverges; evaluation adds a little, training in groups saves some.
    """
    number = sum(len(unit.cells) for unit in units)
    trainings = [Training.of(cell.parameters) for cell in open_cells(work, units, store)]
    by_kind = {_kind(training): training for training in trainings}
    each = max(_LEAST_SECONDS, min(_SECONDS, _ALL_SECONDS / max(1, len(by_kind))))
    steps = {kind: _seconds_per_step(one, threads, each) for kind, one in by_kind.items()}
    seconds = sum(training.steps * steps[_kind(training)] for training in trainings)
    longest = max((training.steps for training in trainings), default=0)
    slowest = max(steps.values(), default=0.0)
    return TimeEstimate(number, len(trainings), longest, slowest, seconds / workers)


def _kind(training: Training) -> str:
    """The settings that determine the duration of a step."""
    values = {name: value for name, value in vars(training).items() if name not in _NOT_TIMED}
    return canonical_json(values)


def _seconds_per_step(training: Training, threads: int, seconds: float) -> float:
    """Mean duration of a training step, measured for some seconds."""
    problem = training.problem(training.network(0).to(training.device))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        running = train(problem, sgd(0.0, training.momentum), 10_000, training.batch_size)
        with closing(running):
            for _ in zip(range(_WARM_UP), running, strict=False):
                pass
            begun, taken = time.perf_counter(), 0
            for _ in running:
                taken += 1
                if time.perf_counter() - begun > seconds:
                    break
    finally:
        torch.set_num_threads(before)
    return (time.perf_counter() - begun) / max(1, taken)
