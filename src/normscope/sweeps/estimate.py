"""What a diagram will cost: the number of cells, and the time by a measured step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from normscope.problem.problem import Problem
from normscope.results import Store, record_key
from normscope.results.record import canonical_json
from normscope.sweeps.cells import Cell, Unit
from normscope.sweeps.training_settings import Training
from normscope.sweeps.work import Work
from normscope.training import sgd, train

__all__ = ["Estimate", "estimate", "open_cells"]

_SECONDS = 0.5  # of measuring, for each kind of network
_LEAST = 0.1
_ALL = 4.0  # seconds for all kinds
_NO_MATTER = ("gamma", "learning_rate", "epochs")  # to the duration of a step


@dataclass(frozen=True)
class Estimate:
    """What a sweep will cost.

    Args:
        cells: in all.
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
    """The cells that have no result in the store."""
    records = [] if store is None else store.select(work.experiment)
    ended = {each.key for each in records if each.state.has_result}
    cells = [cell for unit in units for cell in unit.cells]
    return [
        cell
        for cell in cells
        if record_key(work.experiment, cell.parameters, cell.seed, work.revision) not in ended
    ]


def estimate(
    work: Work, units: Sequence[Unit], store: Store | None, workers: int, threads: int
) -> Estimate:
    """Cells and time of a diagram: the steps of every open cell by measured steps of its network.

    Args:
        work: what is computed.
        units: of the sweep.
        store: with the results so far; None: none.
        workers: trainings at the same time.
        threads: of each worker.

    Returns:
        The time if no cell diverges; evaluation adds a little, training in groups takes some off.
    """
    number = sum(len(unit.cells) for unit in units)
    trainings = [Training.of(cell.parameters) for cell in open_cells(work, units, store)]
    by_kind = {_kind(training): training for training in trainings}
    each = max(_LEAST, min(_SECONDS, _ALL / max(1, len(by_kind))))
    steps = {kind: seconds_per_step(one, threads, each) for kind, one in by_kind.items()}
    seconds = sum(training.steps * steps[_kind(training)] for training in trainings)
    longest = max((training.steps for training in trainings), default=0)
    slowest = max(steps.values(), default=0.0)
    return Estimate(number, len(trainings), longest, slowest, seconds / workers)


def _kind(training: Training) -> str:
    """What decides how long a step takes."""
    values = {name: value for name, value in vars(training).items() if name not in _NO_MATTER}
    return canonical_json(values)


def seconds_per_step(training: Training, threads: int = 1, seconds: float = _SECONDS) -> float:
    """Mean duration of a training step.

    Args:
        training: whose network and batches are used.
        threads: of torch meanwhile.
        seconds: of measuring.

    Returns:
        Seconds.
    """
    network = training.network(0).to(training.device)
    problem = Problem(network, training.loss_function, tuple(training.data_set.train))
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
                if time.perf_counter() - begun > seconds:
                    break
    finally:
        torch.set_num_threads(before)
    return (time.perf_counter() - begun) / max(1, taken)
