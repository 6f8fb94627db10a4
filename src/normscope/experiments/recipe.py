"""Experiments: settings by scale, a measurement, claims and a figure under one name.

A file in ``experiments/<paper>/`` that decorates its measurement with `experiment` is found by the
command line, the listing, the documentation and the tests. `experiment_sweep` runs one with every
combination of some settings.
"""

from __future__ import annotations

import inspect
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from normscope.errors import ArgumentTypeError, InputError
from normscope.experiments.result import Result
from normscope.interrupts import interrupt_safe
from normscope.progress import ProgressCallback, ProgressOption, callback_of, ignore_progress
from normscope.progress_bar import shows_progress
from normscope.registry import Registry, unknown_name
from normscope.results import Claim, Store
from normscope.sweeps import Cell, Unit, Work, grid_cells
from normscope.sweeps.run import open_store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = ("quick", "small", "medium", "paper")
"""How large an experiment is run; medium: the paper's steps on narrower networks."""
REQUIRED_SCALES = ("quick", "small", "paper")  # medium is small where an experiment has no other
LARGEST_SEED = 2**31 - 2**20  # NetCDF files hold 32 bits, and further seeds follow it
GIVEN = ("store", "progress")  # arguments of a measurement that are not settings

Measurement = Callable[..., xr.Dataset]  # its settings, ``store`` and ``progress`` by keyword


@dataclass(frozen=True, slots=True)
class Recipe:
    """An experiment: how to run it, judge its claims and draw it.

    Args:
        name: ``paper/figure``.
        measure: takes settings, ``store`` and ``progress``; returns the labelled numbers.
        claims: the paper's statements, judged by these numbers.
        figure: draws them in the paper's layout.
        scales: settings of each scale that differ from the defaults.
        defaults: the settings with their defaults.
        revision: raised when a change of the code changes the numbers.
    """

    name: str
    measure: Measurement
    claims: Callable[[xr.Dataset], list[Claim]]
    figure: Callable[[xr.Dataset], Figure]
    scales: Mapping[str, Mapping[str, Any]]
    defaults: Mapping[str, Any]
    revision: int = 1

    def __call__(self, store: Store, progress: ProgressCallback, **settings: Any) -> xr.Dataset:
        """Measure with these settings; the store records this revision."""
        with store.revised(self.revision):
            return self.measure(store=store, progress=progress, **settings)

    @property
    def summary(self) -> str:
        """The first line of the measurement's docstring."""
        return (inspect.getdoc(self.measure) or "").partition("\n")[0]

    def settings(self, scale: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings at a scale.

        Args:
            scale: quick, small, medium or paper.
            overrides: settings that replace the scale's.

        Returns:
            The settings by name.

        Raises:
            UnknownNameError: if there is no such scale or setting.
            ArgumentTypeError: if a setting is of another kind than its default.
        """
        if scale not in SCALES:
            raise unknown_name("scale", scale, SCALES)
        known = self.defaults
        for name, value in overrides.items():
            if name not in known:
                raise unknown_name("setting", name, known, f"of {self.name}")
            _check_kind(f"setting {name} of {self.name}", value, known[name])
        seed = overrides.get("seed")
        if isinstance(seed, int) and not 0 <= seed <= LARGEST_SEED:
            raise InputError(f"seed must be from 0 to {LARGEST_SEED}, got {seed}.")
        own = self.scales.get(scale, self.scales["small"])
        return {**known, **own, **overrides}


def _check_kind(what: str, value: Any, default: Any) -> None:
    """Raise if a setting has another type than its default.

    An integer that is positive by default must be positive; with a default of None any value is
    accepted.
    """
    if default is None or value is None:
        return
    kind = next((each for each in (bool, str, int, float) if isinstance(default, each)), Sequence)
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise ArgumentTypeError(f"{what} must be like {default!r}, got {value!r}.")
    if kind is int and default >= 1 > value:
        raise InputError(f"{what} must be at least 1, got {value!r}.")
    if kind is Sequence:
        if isinstance(value, str) or not value:
            raise ArgumentTypeError(f"{what} must be values like {default!r}, got {value!r}.")
        for item in value if default else ():
            _check_kind(f"each of {what}", item, default[0])


def _modules() -> Iterator[str]:
    """Yield the names of all modules in the papers' folders, without importing them."""
    home = Path(__file__).parent
    for paper in pkgutil.iter_modules([str(home)]):
        if paper.ispkg:
            folder = f"normscope.experiments.{paper.name}"
            for module in pkgutil.iter_modules([str(home / paper.name)]):
                yield f"{folder}.{module.name}"


EXPERIMENTS: Registry[Recipe] = Registry("experiment", _modules())
"""Experiments by name, ``paper/figure``; `experiment` registers one."""


def experiment(
    name: str,
    *,
    claims: Callable[[xr.Dataset], list[Claim]],
    figure: Callable[[xr.Dataset], Figure],
    scales: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any] | None = None,
    revision: int = 1,
) -> Callable[[Measurement], Measurement]:
    """Decorator: register a measurement as an experiment.

    Args:
        name: ``paper/figure``.
        claims: the paper's statements, judged by the measured numbers.
        figure: draws them.
        scales: for each of quick, small and paper, and medium if it is not like small, the settings
            that differ from the defaults.
        defaults: the settings with their defaults; by default those of the function's signature.
        revision: to be raised when a change of the code changes the numbers.

    Returns:
        The decorator; it leaves the function as it is.

    Raises:
        InputError: if a scale is missing.
    """
    missing = [scale for scale in REQUIRED_SCALES if scale not in scales]
    if missing:
        raise InputError(f"experiment {name} has no settings for {', '.join(missing)}.")

    def register(measure: Measurement) -> Measurement:
        own = _signature_defaults(measure) if defaults is None else defaults
        recipe = Recipe(name, measure, claims, figure, scales, own, revision)
        EXPERIMENTS.register(name=name)(recipe)
        return measure

    return register


def _signature_defaults(measure: Measurement) -> dict[str, Any]:
    parameters = inspect.signature(measure).parameters.values()
    return {each.name: each.default for each in parameters if each.name not in GIVEN}


def side_by_side(dimension: str, parts: Mapping[Any, xr.Dataset]) -> xr.Dataset:
    """Concatenate datasets along a new dimension; NaN where one of them has no value.

    >>> both = side_by_side("seed", {0: xr.Dataset({"a": 1.0}), 4: xr.Dataset({"a": 2.0})})
    >>> both["a"].sel(seed=4).item()
    2.0
    """
    return xr.concat(
        list(parts.values()),
        xr.Variable(dimension, list(parts)),
        data_vars="all",
        coords="minimal",
        compat="equals",
        join="outer",
        combine_attrs="drop_conflicts",
    )


@interrupt_safe
@shows_progress("experiment")
def run(
    name: str,
    scale: str = "quick",
    *,
    store: Store | None = None,
    progress: ProgressOption = None,
    **overrides: Any,
) -> Result:
    """Run an experiment: measure and judge the paper's claims.

    Args:
        name: such as ``santurkar2018/figure4``; ``normscope list`` shows all.
        scale: quick (seconds, embedded data), small (minutes, real data), medium (hours: the
            paper's steps on narrower networks) or paper.
        store: keeps finished trainings: an interrupted run resumes, and experiments that need the
            same trainings share them. None: kept in memory for this call.
        progress: receives an event before each part; True shows a bar, and so does None in a
            notebook or console.
        **overrides: settings that differ from the scale's.

    Returns:
        The numbers, the claims with their verdicts, and the figure.

    Examples:
        >>> run("wei2018/figure1", seeds=1, sed=3)
        Traceback (most recent call last):
        ...
        normscope.errors.UnknownNameError: unknown setting 'sed' of wei2018/figure1; did you mean \
'seed'? Choices: channels, gammas, measured_gammas, momentum, samples, seed, seeds, width.
    """
    recipe = EXPERIMENTS[name]
    settings = recipe.settings(scale, overrides)
    begun = time.perf_counter()
    with open_store(store) as kept:
        dataset = recipe(kept, callback_of(progress), **settings)
    seconds = time.perf_counter() - begun
    claims = tuple(recipe.claims(dataset))
    return Result(name, scale, dataset, claims, settings, dict(overrides), seconds, recipe.figure)


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
        scale: quick, small, medium or paper, for the settings that are not given.
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
