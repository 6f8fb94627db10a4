"""Phase diagrams: trainings over gamma, learning rate and other settings, beside the theory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import InputError
from normscope.import_path import is_import_path
from normscope.interrupts import interrupt_safe
from normscope.progress import ProgressOption, callback_of
from normscope.progress_bar import shows_progress
from normscope.registry import check_choice
from normscope.results import State, Store
from normscope.results.record import canonical_json
from normscope.sweeps.cell import GROUP, group_key, has_diverged, train_unit
from normscope.sweeps.run import open_store, sweep
from normscope.sweeps.settings import (
    Training,
    check_axes,
    check_buildable,
    check_settings,
    complete_settings,
    value_list,
)
from normscope.sweeps.theory import critical_lines
from normscope.sweeps.work import Report, Unit, Work, grid_cells, group_cells

TRAININGS = Work("phase_diagram", train_unit, revision=1, diverged=has_diverged)
"""The trainings of phase diagrams, for `sweep` with the units of a `Diagram`."""
MODEL = "fully_connected"
DEFAULT_AXES = {"gamma": (0.1, 0.3, 1.0, 3.0), "learning_rate": (0.001, 0.01, 0.1, 1.0)}
SCALES: dict[str, dict[str, Any]] = {
    "quick": {"data": "digits", "width": 64, "epochs": 2},
    "small": {"data": "mnist", "epochs": 1, "samples": 12800, "test_samples": 2000},
    "medium": {"data": "mnist", "epochs": 5, "width": 250},
    "paper": {"data": "mnist", "epochs": 5},
}
SCALARS = ("test_loss", "test_accuracy", "train_loss", "loss_growth", "steps_done")
_DESCRIBED = ("model", "norm", "data", "loss", "momentum", "batch_size", "epochs")


class Diagram:
    """The plan of a phase diagram: its trainings, and their results in a store.

    Args:
        axes: the values of the settings that vary, the learning rate among them.
        settings: the others; missing ones have their defaults.
        seeds: of weights and order of the data.

    Raises:
        InputError: if a setting is invalid, or a network cannot be built.
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[Any]],
        settings: Mapping[str, Any],
        seeds: Sequence[int],
    ) -> None:
        check_settings(settings)
        self.axes, self.seeds = check_axes(axes), list(seeds)
        self.settings = complete_settings(settings)
        self.cells = grid_cells(self.axes, self.settings, self.seeds)
        check_buildable(self.axes, self.settings, self.seeds[0])

    @cached_property
    def units(self) -> list[Unit]:
        """The trainings as units of work, coarse to fine."""
        return list(group_cells(self.cells, GROUP, group_key))

    @cached_property
    def lines(self) -> xr.DataArray:
        """Critical learning rates by theory (closure, axes without the learning rate)."""
        return critical_lines(self.settings, self.axes)

    @property
    def description(self) -> str:
        """How the networks are trained, in one line; settings that vary are left out."""
        values = {name: self._fixed[name] for name in _DESCRIBED if name in self._fixed}
        parts = [
            f"{name.replace('_', ' ')} {f'{value:g}' if isinstance(value, float) else value}"
            for name, value in values.items()
        ]
        return f"Trained: {', '.join(parts)}."

    @property
    def _fixed(self) -> dict[str, Any]:
        return {name: value for name, value in self.settings.items() if name not in self.axes}

    def run(self, store: Store, **running: Any) -> Report:
        """Train every cell that has no result yet.

        Args:
            store: of the results.
            **running: engine, workers, threads, address, max_attempts and progress of `sweep`.
        """
        return sweep(TRAININGS, self.units, store, **running)

    def results(self, store: Store) -> xr.Dataset:
        """Results in the store, with the theory's lines; nothing is trained.

        Args:
            store: with the trainings so far.

        Returns:
            Scalars of every cell (axes, seed), NaN where there are none yet; ``diverged`` and
            ``failed``; ``critical_learning_rate``; the fixed settings as JSON.
        """
        training = Training.of(self.settings)
        return (
            self._collect(store)
            .assign(critical_learning_rate=self.lines)
            .assign_attrs(
                settings=json.dumps(self._fixed), loss=training.loss, momentum=training.momentum
            )
        )

    def _collect(self, store: Store) -> xr.Dataset:
        """Return the stored results on the grid; NaN where there is none."""
        dims, shape = (*self.axes, "seed"), (*map(len, self.axes.values()), len(self.seeds))
        values = {name: np.full(shape, np.nan) for name in SCALARS}
        flags = {name: np.zeros(shape, dtype=bool) for name in ("diverged", "failed")}
        records = {each.key: each for each in store.select(TRAININGS.experiment)}
        for cell in self.cells:
            record = records.get(TRAININGS.key(cell))
            if record is None:
                continue
            labels = (self.axes[name].index(cell.parameters[name]) for name in self.axes)
            index = (*labels, self.seeds.index(cell.seed))
            flags["failed"][index] = record.state is State.FAILED
            if record.state.has_result:
                flags["diverged"][index] = has_diverged(record.dataset)
                for name, array in values.items():
                    array[index] = float(record.dataset[name])
        coordinates = {name: _labels(each) for name, each in self.axes.items()}
        return xr.Dataset(
            {name: (dims, array) for name, array in {**values, **flags}.items()},
            {**coordinates, "seed": self.seeds},
        )


@interrupt_safe
@shows_progress("phase diagram")
def phase_diagram(
    model: str = MODEL,
    data: str = "digits",
    gammas: Sequence[float] = DEFAULT_AXES["gamma"],
    learning_rates: Sequence[float] = DEFAULT_AXES["learning_rate"],
    seeds: int | Sequence[int] = 1,
    epochs: float = 5,
    *,
    axes: Mapping[str, Sequence[Any]] | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    engine: str = "local",
    workers: int = 1,
    threads: int = 1,
    address: str | None = None,
    max_attempts: int = 3,
    progress: ProgressOption = None,
    **settings: Any,
) -> xr.Dataset:
    """Train over all (gamma, learning rate, seed), and compute the theory's critical rates.

    Every training is a record of the store: an interrupted call resumes, and diagrams that have
    trainings in common share them. Reference: wei2018, Figure 2.

    Args:
        model: a registered model, or the import path of a factory, such as ``my_model.py:build``
            or ``package.module:build``.
        data: a registered data set, or the import path of a function that returns a pair
            (inputs, targets), or two such pairs (training, test).
        gammas: initial scales of every norm layer.
        learning_rates: of SGD.
        seeds: the number of repetitions, or their seeds.
        epochs: passes over the training data.
        axes: values of further settings that vary, each a dimension of the result.
        store: of the trainings: a store, or the path of its file; None: in memory.
        engine: local, ray or dask.
        workers: trainings at the same time.
        threads: of each worker.
        address: of a running Ray or Dask cluster.
        max_attempts: how often a training may lose its worker before it counts as failed.
        progress: called with a `Progress` event as trainings end; True shows a bar, and so does
            None in a notebook or console.
        **settings: the other settings of :class:`normscope.sweeps.Training`, and options of the
            model.

    Returns:
        ``test_loss``, ``test_accuracy``, ``train_loss``, ``loss_growth``, ``steps_done`` and
        ``diverged`` (gamma, learning_rate, seed), NaN where a training diverged or failed
        (``failed``); ``critical_learning_rate`` (closure, gamma) by theory.

    Examples:
        >>> found = phase_diagram(
        ...     gammas=[1.0], learning_rates=[0.01, 10.0], epochs=1, width=20, samples=256
        ... )
        >>> found["diverged"].values.ravel().tolist()
        [False, True]
    """
    refuse_settings(
        settings,
        gamma="give its values as gammas",
        learning_rate="give its values as learning_rates",
    )
    varying = {
        "gamma": value_list("gammas", gammas),
        **(axes or {}),
        "learning_rate": value_list("learning_rates", learning_rates),
    }
    fixed = {"model": model, "data": data, "epochs": epochs, **settings}
    fixed = {name: value for name, value in fixed.items() if name not in varying}
    running: dict[str, Any] = {"engine": engine, "workers": workers, "threads": threads}
    running |= {"address": address, "max_attempts": max_attempts}
    plan = Diagram(varying, fixed, seed_list(seeds))
    with open_store(store) as opened:
        plan.run(opened, **running, progress=callback_of(progress))
        return plan.results(opened)


def split_settings(
    given: Mapping[str, Sequence[Any]], scale: str
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Split the settings of a command into those that vary and the fixed ones.

    Args:
        given: one or several values of each setting; gamma and learning_rate always vary.
        scale: quick, small, medium or paper, for settings that are not given.

    Returns:
        The axes, the learning rate last, and the fixed settings.
    """
    check_choice("scale", scale, SCALES)
    values = {name: list(each) for name, each in {**DEFAULT_AXES, **given}.items()}
    axes = {name: each for name, each in values.items() if name in DEFAULT_AXES or len(each) > 1}
    axes["learning_rate"] = axes.pop("learning_rate")
    fixed = {name: each[0] for name, each in values.items() if name not in axes}
    chosen = {**SCALES[scale], **fixed}
    data = [each for each in values.get("data", ()) if isinstance(each, str)]
    if any(is_import_path(each, "samples") for each in data):
        for name in {"samples", "test_samples"} - set(fixed):
            chosen.pop(name, None)  # the scale's belong to its own data
    if any(model != MODEL for model in values.get("model", ())) and "width" not in fixed:
        chosen.pop("width", None)  # the scale's belongs to the fully connected network
    return axes, {name: value for name, value in chosen.items() if name not in axes}


def seed_list(seeds: int | Sequence[int], first: int = 0) -> list[int]:
    """Return that many seeds from the first one on, or the given seeds as a list."""
    return list(range(first, first + seeds)) if isinstance(seeds, int) else list(seeds)


def refuse_settings(settings: Mapping[str, Any], **remedies: str) -> None:
    """Raise for fixed settings that the function varies itself.

    Args:
        settings: as given.
        **remedies: what to do instead, by the name of the setting.

    Raises:
        InputError: if there is one.
    """
    for name, remedy in remedies.items():
        if name in settings:
            raise InputError(
                f"{name} is not a fixed setting here, got {settings[name]!r}; {remedy}."
            )


def _labels(values: list[Any]) -> list[Any]:
    """Return values as a coordinate: numbers, booleans or strings; all others as JSON.

    >>> _labels([1, 2.5]), _labels([[6, 8], [3, 4]]), _labels([None, 100])
    ([1, 2.5], ['[6,8]', '[3,4]'], ['null', '100'])
    """
    for kind in (bool, (int, float), str):
        if all(isinstance(each, kind) for each in values):
            return values
    return [canonical_json(each) for each in values]
