"""How far a sweep is: read from its file while another process writes it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from normscope.results import Record, State, Store

__all__ = ["Status", "status"]


@dataclass(frozen=True)
class Status:
    """The state of one experiment's cells in a store.

    Args:
        experiment: the name of the records.
        counts: cells in each state.
        seconds: mean duration of the cells that have a result; None: there are none.
        seconds_left: estimate of the time to the end at the present pace; None: not known.
        failures: (parameters, seed, error) of the failed cells.
    """

    experiment: str
    counts: dict[State, int]
    seconds: float | None
    seconds_left: float | None
    failures: tuple[tuple[dict[str, object], int, str], ...]

    @property
    def cells(self) -> int:
        """How many there are in all."""
        return sum(self.counts.values())

    @property
    def open(self) -> int:
        """How many have no result and have not failed."""
        return self.counts[State.PENDING] + self.counts[State.RUNNING]

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        return {
            "experiment": self.experiment,
            "cells": self.cells,
            **{str(state): number for state, number in self.counts.items()},
            "seconds_per_cell": self.seconds,
            "seconds_left": self.seconds_left,
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
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.experiment, []).append(record)
    return [_status(name, group) for name, group in by_name.items()]


def _status(name: str, records: list[Record]) -> Status:
    counts = dict.fromkeys(State, 0)
    for record in records:
        counts[record.state] += 1
    times = [each.seconds for each in records if each.state.has_result and each.seconds is not None]
    mean = sum(times) / len(times) if times else None
    running = counts[State.RUNNING]
    left = None
    if mean is not None and running:  # nobody is at work otherwise
        left = mean * (counts[State.PENDING] / running + 0.5)
    failures = tuple(
        (each.parameters, each.seed, each.error or "")
        for each in records
        if each.state is State.FAILED
    )
    return Status(name, counts, mean, left, failures)
