"""Where training converges: the diagram over gamma (or another setting) and learning rate."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import InputError
from normscope.meanfield import CLOSURES
from normscope.results import Store
from normscope.results.record import Record
from normscope.sweeps.cells import Cell, Unit, grid_cells, units_of
from normscope.sweeps.defaults import DEFAULT_GAMMAS, DEFAULT_RATES, MODEL
from normscope.sweeps.sweep import opened, sweep
from normscope.sweeps.theory import critical_rates
from normscope.sweeps.together import GROUP, group_of, train_units
from normscope.sweeps.training_cell import Training, has_diverged
from normscope.sweeps.work import Report, Work

__all__ = ["EXPERIMENT", "TRAININGS", "diagram", "phase_diagram", "seed_list", "training_units"]

EXPERIMENT = "phase_diagram"  # the name of the cells' records
TRAININGS = Work(EXPERIMENT, train_units, revision=1, diverged=has_diverged)
SCALARS = ("test_loss", "test_accuracy", "train_loss", "loss_growth", "steps_done")


def phase_diagram(
    model: str = MODEL,
    data: str = "digits",
    gammas: Sequence[float] = DEFAULT_GAMMAS,
    learning_rates: Sequence[float] = DEFAULT_RATES,
    seeds: int | Sequence[int] = 1,
    epochs: float = 5,
    *,
    store: Store | str | os.PathLike[str] | None = None,
    engine: str = "local",
    workers: int = 1,
    threads: int = 1,
    address: str | None = None,
    progress: Callable[[str], None] = lambda label: None,
    **settings: Any,
) -> xr.Dataset:
    """Train over all (gamma, learning rate, seed) and set the theory's lines beside it.

    Every training is a record of the store: an interrupted call goes on where it was, and
    diagrams that share trainings share them. Reference: wei2018, Figure 2.

    Args:
        model: a registered model.
        data: a registered data set.
        gammas: initial scales of the normalization.
        learning_rates: of SGD.
        seeds: how many repetitions, or their seeds.
        epochs: passes over the training data.
        store: keeps the trainings: a store, or the path of its file; None: for this call only.
        engine: local, ray or dask.
        workers: trainings at the same time.
        threads: of each worker.
        address: of a Ray or Dask cluster that runs already.
        progress: called with a label as trainings end.
        **settings: the other settings of :class:`normscope.sweeps.Training`, and options of the
            model.

    Returns:
        ``test_loss``, ``test_accuracy``, ``train_loss``, ``loss_growth``, ``steps_done`` and
        ``diverged`` (gamma, learning_rate, seed), not-a-number where a training diverged or
        failed; ``critical_learning_rate`` (closure, gamma) by theory.

    Examples:
        >>> found = phase_diagram(
        ...     gammas=[1.0], learning_rates=[0.01, 10.0], epochs=1, width=20, samples=256
        ... )
        >>> found["diverged"].values.ravel().tolist()
        [False, True]
    """
    fixed = {"model": model, "data": data, "epochs": epochs, **settings}
    axes = {"gamma": list(gammas), "learning_rate": list(learning_rates)}
    found, _ = diagram(
        axes,
        fixed,
        seed_list(seeds),
        store,
        engine=engine,
        workers=workers,
        threads=threads,
        address=address,
        progress=progress,
    )
    return found


def seed_list(seeds: int | Sequence[int], first: int = 0) -> list[int]:
    """The seeds: so many of them from the first one on, or as they are given."""
    return list(range(first, first + seeds)) if isinstance(seeds, int) else list(seeds)


def training_units(
    axes: Mapping[str, Sequence[Any]], settings: Mapping[str, Any], seeds: Sequence[int]
) -> list[Unit]:
    """The trainings of a diagram as units of work, every setting written out.

    Args:
        axes: the values of the settings that vary.
        settings: the others; what is not given has its default.
        seeds: of weights and order of the data.

    Returns:
        The units, coarse to fine.
    """
    cells = grid_cells(axes, complete(settings), seeds)
    for value in axes.get("learning_rate", ()):
        if not value > 0:
            raise InputError(f"learning_rates must be above 0, got {value!r}.")
    _ = Training.of(cells[0].parameters).network(cells[0].seed)  # refuse before anything is stored
    return list(units_of(cells, GROUP, group_of))


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a training by name, those of the model beside the others."""
    training = Training.of(settings)
    named = {name: value for name, value in vars(training).items() if name != "options"}
    return {**named, **(training.options or {})}


def diagram(
    axes: Mapping[str, Sequence[Any]],
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    store: Store | str | os.PathLike[str] | None = None,
    **running: Any,
) -> tuple[xr.Dataset, Report]:
    """A diagram over any settings.

    Args:
        axes: the values of the settings that vary; the last of two is the learning rate.
        settings: the others.
        seeds: of weights and order of the data.
        store: keeps the trainings.
        **running: engine, workers, threads, address, progress, as `sweep` has them.

    Returns:
        The labelled results (axes, seed), and what was done.
    """
    units = training_units(axes, settings, seeds)
    with opened(store) as kept:
        report = sweep(TRAININGS, units, kept, **running)
        found = collected(kept, axes, [cell for unit in units for cell in unit.cells], seeds)
    training = Training.of(complete(settings))
    return _with_theory(found, axes, training), report


def collected(
    store: Store, axes: Mapping[str, Sequence[Any]], cells: Sequence[Cell], seeds: Sequence[int]
) -> xr.Dataset:
    """The results of the cells on their grid.

    Args:
        store: where they are.
        axes: of the grid.
        cells: of the grid.
        seeds: of the grid.

    Returns:
        Scalars of every cell (axes, seed); not-a-number where there are none.
    """
    from normscope.results import record_key

    shape = (*map(len, axes.values()), len(seeds))
    values = {name: np.full(shape, np.nan) for name in SCALARS}
    diverged, failed = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    records = {each.key: each for each in store.select(EXPERIMENT)}
    for cell in cells:
        key = record_key(EXPERIMENT, cell.parameters, cell.seed, TRAININGS.revision)
        where = (
            *(list(axes[name]).index(cell.parameters[name]) for name in axes),
            list(seeds).index(cell.seed),
        )
        _place(records[key], where, values, diverged, failed)
    dims = (*axes, "seed")
    return xr.Dataset(
        {
            **{name: (dims, array) for name, array in values.items()},
            "diverged": (dims, diverged),
            "failed": (dims, failed),
        },
        coords={**{name: list(each) for name, each in axes.items()}, "seed": list(seeds)},
    )


def _place(
    record: Record,
    where: tuple[int, ...],
    values: Mapping[str, np.ndarray],
    diverged: np.ndarray,
    failed: np.ndarray,
) -> None:
    if not record.state.has_result:
        failed[where] = True
        return
    for name, array in values.items():
        array[where] = float(record.dataset[name])
    diverged[where] = has_diverged(record.dataset)


def _with_theory(
    found: xr.Dataset, axes: Mapping[str, Sequence[Any]], training: Training
) -> xr.Dataset:
    """The theory's lines over the first axis, and the settings in words."""
    first = next(iter(axes))
    rates = critical_rates(training, first, [float(value) for value in axes[first]])
    lines = xr.DataArray(rates, dims=("closure", first), coords={"closure": list(CLOSURES)})
    words = {**vars(training), **(training.options or {})}
    for name in (*axes, "options"):
        words.pop(name, None)
    return found.assign(critical_learning_rate=lines).assign_attrs(
        settings=json.dumps(words), loss=training.loss, momentum=training.momentum
    )
