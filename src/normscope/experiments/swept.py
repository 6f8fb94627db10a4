"""Sweeps over an experiment: each cell runs it with one combination of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import xarray as xr

from normscope.errors import InputError
from normscope.experiments.recipe import EXPERIMENTS
from normscope.progress import ignore_progress
from normscope.results import Store
from normscope.sweeps import Cell, Unit, Work, grid_cells


def run_cells(name: str, cells: Sequence[Cell]) -> list[xr.Dataset]:
    """Run an experiment once for each cell, with a store in memory.

    Args:
        name: of the experiment.
        cells: with all settings.

    Returns:
        The dataset of each.
    """
    found = []
    for cell in cells:
        with Store(":memory:") as store:
            settings = {**cell.parameters, "seed": cell.seed}
            found.append(EXPERIMENTS[name](store, ignore_progress, **settings))
    return found


def experiment_sweep(
    name: str, scale: str, values: Mapping[str, Sequence[Any]], seeds: Sequence[int]
) -> tuple[Work, list[Unit]]:
    """Return the work and units of a sweep over some settings of an experiment.

    Args:
        name: of the experiment.
        scale: quick, small or paper, for the settings that are not given.
        values: for each setting given, one value or several.
        seeds: of the experiment.

    Returns:
        What `normscope.sweeps.sweep` takes.

    Raises:
        InputError: if the seed is among the settings.
    """
    recipe = EXPERIMENTS[name]
    if "seed" in values:
        raise InputError("the seeds of a sweep are given by --seeds, not as a setting.")
    for setting, each in values.items():
        for value in each:
            recipe.settings(scale, {setting: value})  # fail before anything is stored
    settings = recipe.settings(scale, {setting: each[0] for setting, each in values.items()})
    settings.pop("seed", None)
    axes = {setting: each for setting, each in values.items() if len(each) > 1}
    cells = grid_cells(axes, settings, seeds)
    work = Work(name, partial(run_cells, name), recipe.revision)
    return work, [Unit((cell,)) for cell in cells]
