"""A diagram as a plan: the trainings it needs, and what a store holds of them so far."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from normscope.results import Record, State, Store, record_key
from normscope.results.record import canonical_json
from normscope.sweeps.cells import Cell, Unit, grid_cells, units_of
from normscope.sweeps.checked import check_buildable, check_settings, checked_axes
from normscope.sweeps.own import source_digest
from normscope.sweeps.sweep import opened, sweep
from normscope.sweeps.theory import critical_lines
from normscope.sweeps.together import GROUP, group_of, train_units
from normscope.sweeps.training_cell import has_diverged
from normscope.sweeps.training_settings import Training
from normscope.sweeps.work import Report, Work

__all__ = ["EXPERIMENT", "TRAININGS", "Diagram", "complete", "diagram", "training_units"]

EXPERIMENT = "phase_diagram"  # the name of the cells' records
TRAININGS = Work(EXPERIMENT, train_units, revision=1, diverged=has_diverged)
_APART = ("device", "code", "options")  # most trainings have none: not in what they are known by
SCALARS = ("test_loss", "test_accuracy", "train_loss", "loss_growth", "steps_done")


class Diagram:
    """The trainings over some settings, and their results; nothing is computed here.

    Args:
        axes: the values of the settings that vary, the learning rate among them.
        settings: the others; what is not given has its default.
        seeds: of weights and order of the data.
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[Any]],
        settings: Mapping[str, Any],
        seeds: Sequence[int],
    ) -> None:
        check_settings(settings)
        self.axes, self.seeds = checked_axes(axes), list(seeds)
        self.settings = complete(settings)
        self.cells = grid_cells(self.axes, self.settings, self.seeds)
        check_buildable(self.axes, self.settings, self.seeds[0])

    @cached_property
    def units(self) -> list[Unit]:
        """The trainings as units of work, coarse to fine."""
        return list(units_of(self.cells, GROUP, group_of))

    @cached_property
    def lines(self) -> xr.DataArray:
        """The theory's critical learning rates (closure, axes without the learning rate)."""
        return critical_lines(self.settings, self.axes)

    @property
    def words(self) -> str:
        """How the networks are trained, in one line; what varies is left out."""
        settings = {name: value for name, value in self.settings.items() if name not in self.axes}
        named = ("model", "norm", "data", "loss", "momentum", "batch_size", "epochs")
        said = [f"{name} {_short(settings[name])}" for name in named if name in settings]
        return f"Trained: {', '.join(said).replace('batch_size', 'batch size')}."

    def results(self, store: Store) -> xr.Dataset:
        """What the store holds of the diagram, with the theory's lines; nothing is trained.

        Args:
            store: with the trainings so far.

        Returns:
            Scalars of every cell (axes, seed), not-a-number where there are none yet;
            ``diverged`` and ``failed``; ``critical_learning_rate``; the settings in words.
        """
        training = Training.of(self.settings)
        words = {name: value for name, value in self.settings.items() if name not in self.axes}
        return (
            self._collected(store)
            .assign(critical_learning_rate=self.lines)
            .assign_attrs(
                settings=json.dumps(words), loss=training.loss, momentum=training.momentum
            )
        )

    def _collected(self, store: Store) -> xr.Dataset:
        shape = (*map(len, self.axes.values()), len(self.seeds))
        values = {name: np.full(shape, np.nan) for name in SCALARS}
        flags = {name: np.zeros(shape, dtype=bool) for name in ("diverged", "failed")}
        records = {each.key: each for each in store.select(EXPERIMENT)}
        for cell in self.cells:
            key = record_key(EXPERIMENT, cell.parameters, cell.seed, TRAININGS.revision)
            if key in records:
                _place(records[key], self._where(cell), values, flags)
        dims = (*self.axes, "seed")
        arrays = {**values, **flags}
        return xr.Dataset(
            {name: (dims, array) for name, array in arrays.items()},
            coords={name: _labels(values) for name, values in self.axes.items()}
            | {"seed": self.seeds},
        )

    def _where(self, cell: Cell) -> tuple[int, ...]:
        """The place of a cell in the grid."""
        labels = (self.axes[name].index(cell.parameters[name]) for name in self.axes)
        return (*labels, self.seeds.index(cell.seed))


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _labels(values: list[Any]) -> list[Any]:
    """Values as a coordinate: numbers, truth values or texts; all others by their JSON text.

    >>> _labels([1, 2.5]), _labels([[6, 8], [3, 4]]), _labels([None, 100])
    ([1, 2.5], ['[6,8]', '[3,4]'], ['null', '100'])
    """
    for kind in (bool, (int, float), str):
        if all(isinstance(each, kind) for each in values):
            return values
    return [canonical_json(each) for each in values]


def _place(
    record: Record,
    where: tuple[int, ...],
    values: Mapping[str, np.ndarray],
    flags: Mapping[str, np.ndarray],
) -> None:
    flags["failed"][where] = record.state is State.FAILED
    if not record.state.has_result:
        return
    for name, array in values.items():
        array[where] = float(record.dataset[name])
    flags["diverged"][where] = has_diverged(record.dataset)


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a training by name, those of the model beside the others."""
    training = Training.of(settings)
    code = training.code or source_digest(training.places)
    named = {name: value for name, value in vars(training).items() if name not in _APART}
    if training.device != Training.device:
        named["device"] = training.device
    if code is not None:
        named["code"] = code
    return {**named, **(training.options or {})}


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
    return Diagram(axes, settings, seeds).units


def diagram(
    axes: Mapping[str, Sequence[Any]],
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    store: Store | str | os.PathLike[str] | None = None,
    **running: Any,
) -> tuple[xr.Dataset, Report]:
    """A diagram over any settings.

    Args:
        axes: the values of the settings that vary, the learning rate among them.
        settings: the others.
        seeds: of weights and order of the data.
        store: keeps the trainings.
        **running: engine, workers, threads, address, progress, as `sweep` has them.

    Returns:
        The labelled results (axes, seed), and what was done.
    """
    plan = Diagram(axes, settings, seeds)
    with opened(store) as kept:
        report = sweep(TRAININGS, plan.units, kept, **running)
        return plan.results(kept), report
