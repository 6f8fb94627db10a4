"""What a diagram will cost: the number of cells, and the time by a measured step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from normscope.curvature.problem import Problem
from normscope.results import State, Store, record_key
from normscope.sweeps.cells import Unit
from normscope.sweeps.training_cell import Training
from normscope.sweeps.work import Work
from normscope.training import sgd, train

__all__ = ["Estimate", "estimate", "open_cells"]

_SECONDS = 0.5  # of measuring


@dataclass(frozen=True)
class Estimate:
    """What a sweep will cost.

    Args:
        cells: in all.
        open_cells: those without a result yet.
        steps: of one training; None: not a sweep of trainings.
        seconds_per_step: measured here; None: not a sweep of trainings.
        seconds: to the end at most: cells that diverge take less. None: not known.
    """

    cells: int
    open_cells: int
    steps: int | None
    seconds_per_step: float | None
    seconds: float | None


def open_cells(work: Work, units: Sequence[Unit], store: Store | None) -> int:
    """How many cells have no result in the store."""
    records = [] if store is None else store.select(work.experiment)
    ended = {each.key for each in records if each.state in (State.FINISHED, State.DIVERGED)}
    keys = {
        record_key(work.experiment, cell.parameters, cell.seed, work.revision)
        for unit in units
        for cell in unit.cells
    }
    return len(keys - ended)


def estimate(
    work: Work, units: Sequence[Unit], store: Store | None, workers: int, threads: int
) -> Estimate:
    """Cells and time of a diagram, from steps of its first cell.

    Args:
        work: what is computed.
        units: of the sweep.
        store: with the results so far; None: none.
        workers: trainings at the same time.
        threads: of each worker.

    Returns:
        An upper bound on the time: divergence ends a cell early, evaluation adds a little.
    """
    cells = [cell for unit in units for cell in unit.cells]
    left = open_cells(work, units, store)
    training = Training.of(cells[0].parameters)
    step = seconds_per_step(training, threads)
    steps = training.steps
    return Estimate(len(cells), left, steps, step, left * steps * step / workers)


def seconds_per_step(training: Training, threads: int = 1) -> float:
    """Mean duration of a training step, measured for half a second.

    Args:
        training: whose network and batches are used.
        threads: of torch meanwhile.

    Returns:
        Seconds.
    """
    problem = Problem(training.network(0), training.loss, tuple(training.data_set.train))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        running = train(problem, sgd(0.0, training.momentum), 10_000, training.batch_size)
        with closing(running):
            for _ in zip(range(3), running, strict=False):  # the first steps are slower
                pass
            begun, taken = time.perf_counter(), 0
            for _ in running:
                taken += 1
                if time.perf_counter() - begun > _SECONDS:
                    break
    finally:
        torch.set_num_threads(before)
    return (time.perf_counter() - begun) / max(1, taken)
