"""The critical learning rate by bisection: a few trainings for each gamma instead of a grid."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import InputError
from normscope.interrupts import interrupt_safe
from normscope.progress import Progress, ProgressCallback, ProgressOption, callback_of
from normscope.progress_bar import shows_progress
from normscope.results import Store
from normscope.sweeps.cell import has_diverged, train_unit
from normscope.sweeps.diagram import Diagram, refuse_settings, seed_list
from normscope.sweeps.engines import open_engine
from normscope.sweeps.run import open_store, sweep
from normscope.sweeps.settings import value_list
from normscope.sweeps.theory import critical_lines
from normscope.sweeps.work import Cell, Unit, Work

# Not the records of a phase diagram: a small net trained alone differs by rounding from a group.
SEARCH = Work("phase_boundary", train_unit, revision=1, diverged=has_diverged)
GAMMA, RATE = "gamma", "learning_rate"
TOLERANCE = 0.05
LEAST_TOLERANCE = 1e-5  # rates have six digits
_WIDEST = 1e8  # the search ends without a bracket beyond this factor from its start


@dataclass
class Search:
    """Bisection for one critical learning rate.

    Args:
        start: the first rate to try.
        tolerance: relative width of the bracket at which the search ends.
        low: largest rate known to converge.
        high: smallest rate known to diverge.
        trainings: number of outcomes so far.
        widening: factor of the first step away from the start; later ones are larger.

    >>> search = Search(1.0)
    >>> while (rate := search.next_rate()) is not None:
    ...     search.learn(rate, diverged=rate > 1.3)
    >>> search.low <= 1.3 <= search.high <= 1.05 * search.low
    True
    """

    start: float
    tolerance: float = TOLERANCE
    low: float = 0.0
    high: float = math.inf
    trainings: int = 0
    widening: float = 1.5

    def next_rate(self) -> float | None:
        """Return the rate to try; None: the search has ended."""
        if self.high <= self.low * (1 + self.tolerance):
            return None
        if self.low and self.high < math.inf:
            middle = _round(math.sqrt(self.low * self.high))
            return None if middle in (self.low, self.high) else middle
        if not self.low and self.high == math.inf:
            return _round(self.start)
        # the theory is mostly within a factor of two: widen slowly, then faster
        factor = self.widening ** (2 ** max(0, self.trainings - 1))
        rate = self.low * factor if self.low else self.high / factor
        too_far = not self.start / _WIDEST <= rate <= self.start * _WIDEST
        return None if too_far else _round(rate)

    def learn(self, rate: float, diverged: bool) -> None:
        """Record whether training at a rate diverged."""
        self.trainings += 1
        if diverged:
            self.high = min(self.high, rate)
        else:
            self.low = max(self.low, rate)

    def repeated(self) -> Search:
        """Return the search of another seed: it tries the ends of this one's bracket first."""
        if math.isnan(self.critical):
            return Search(self.start, self.tolerance)
        return Search(self.low, self.tolerance, widening=self.high / self.low)

    @property
    def critical(self) -> float:
        """Geometric mean of the bracket; NaN without one."""
        bracketed = self.low > 0 and self.high < math.inf
        return math.sqrt(self.low * self.high) if bracketed else math.nan


@interrupt_safe
@shows_progress("boundary")
def boundary(
    gammas: Sequence[float],
    *,
    setting: str = GAMMA,
    seeds: int | Sequence[int] = 1,
    tolerance: float = TOLERANCE,
    store: Store | str | os.PathLike[str] | None = None,
    progress: ProgressOption = None,
    engine: str = "local",
    workers: int = 1,
    threads: int = 1,
    address: str | None = None,
    max_attempts: int = 3,
    **settings: Any,
) -> xr.Dataset:
    """Find the critical learning rate for each gamma and seed, by bisection from the theory's rate.

    Every training is a record of the store: an interrupted search resumes. From a read-only store
    nothing is trained, and the brackets are as narrow as its records make them. The other seeds
    start from the bracket of the first. All searches of a round run together, so that workers share
    the load.

    Args:
        gammas: initial scales of the normalization, or the values of another setting.
        setting: the name of that setting, such as ``sigma_w2``.
        seeds: the number of repetitions, or their seeds.
        tolerance: relative width of the bracket at the end, at least 0.00001.
        store: of the trainings: a store, or the path of its file; None: in memory.
        progress: called with a `Progress` event as trainings end; the stage is the round.
            True shows a bar, and so does None in a notebook or console.
        engine: local, ray or dask.
        workers: trainings at the same time.
        threads: of each worker.
        address: of a running Ray or Dask cluster.
        max_attempts: how often a training may lose its worker.
        **settings: as those of `phase_diagram`.

    Returns:
        ``critical_learning_rate``, ``low``, ``high``, ``trainings`` (gamma, seed) and ``theory``
        (closure, gamma); NaN where no bracket was found. The dimension gamma has the name of the
        setting.

    Raises:
        InputError: if the tolerance is too small or infinite, or a setting is invalid.
    """
    if not LEAST_TOLERANCE <= tolerance < math.inf:
        raise InputError(
            f"tolerance must be at least {LEAST_TOLERANCE:g} and finite, got {tolerance}."
        )
    show = callback_of(progress)
    plan = _plan(setting, gammas, settings, seeds)
    fixed = {name: x for name, x in plan.settings.items() if name not in (setting, RATE)}
    theory = critical_lines(fixed, plan.axes)
    values, (first, *others) = plan.axes[setting], plan.seeds
    searches = {
        (value, first): Search(_start(rates), tolerance)
        for value, rates in zip(values, theory.values.T, strict=True)
    }
    rounds = itertools.count(1)
    with open_store(store) as kept, open_engine(engine, workers, threads, address) as opened:
        running = {"engine": opened, "threads": threads, "max_attempts": max_attempts}

        def run_searches() -> None:
            while _take_round(
                searches, setting, fixed, kept, progress=_in_round(show, next(rounds)), **running
            ):
                pass

        run_searches()
        searches |= {
            (value, seed): searches[value, first].repeated() for value in values for seed in others
        }
        run_searches()
    found = _to_dataset(searches, plan, setting, theory)
    return found.assign_attrs(settings=json.dumps(fixed), tolerance=tolerance)


def _plan(
    setting: str,
    values: Sequence[float],
    settings: Mapping[str, Any],
    seeds: int | Sequence[int],
) -> Diagram:
    """Return the plan of the trainings without their learning rates, checked."""
    name = "gammas" if setting == GAMMA else setting
    if setting == RATE:
        raise InputError(f"setting must not be {RATE}: it is what is searched for.")
    remedies = {setting: f"give its values as {name}", RATE: "it is what is searched for"}
    refuse_settings(settings, **remedies)
    return Diagram({setting: value_list(name, values)}, settings, seed_list(seeds))


def _in_round(progress: ProgressCallback, number: int) -> ProgressCallback:
    """Return a callback that adds the round of the bisection to events."""

    def send(event: Progress) -> None:
        progress(replace(event, stage=f"round {number}"))

    return send


def _take_round(
    searches: dict[tuple[float, int], Search],
    setting: str,
    settings: dict[str, Any],
    store: Store,
    **running: Any,
) -> bool:
    """Train at the next rate of every search that has not ended; return whether there was one."""
    cells = {
        (value, seed): Cell({**settings, setting: value, RATE: rate}, seed)
        for (value, seed), search in searches.items()
        if (rate := search.next_rate()) is not None
    }
    if store.read_only:
        cells = {key: cell for key, cell in cells.items() if _is_stored(cell, store)}
    if not cells:
        return False
    if not store.read_only:
        report = sweep(SEARCH, [Unit((cell,)) for cell in cells.values()], store, **running)
        if report.failures:
            raise InputError(f"a training of the search failed: {report.failures[0].error}")
    for value_and_seed, cell in cells.items():
        diverged = SEARCH.diverged(store.get(SEARCH.key(cell)).dataset)
        searches[value_and_seed].learn(cell.parameters[RATE], diverged)
    return True


def _is_stored(cell: Cell, store: Store) -> bool:
    found = store.select(SEARCH.experiment, seed=cell.seed)
    return any(record.key == SEARCH.key(cell) and record.state.has_result for record in found)


def _start(rates: np.ndarray) -> float:
    """Return the theory's rate, of the first closure that has one."""
    known = rates[np.isfinite(rates) & (rates > 0)]
    return float(known[0]) if len(known) else 0.1


def _round(rate: float) -> float:
    """Round to six digits, so that the rates are the same in every run."""
    return float(f"{rate:.6g}")


def _to_dataset(
    searches: Mapping[tuple[float, int], Search], plan: Diagram, setting: str, theory: xr.DataArray
) -> xr.Dataset:
    values, seeds = plan.axes[setting], plan.seeds

    def column(name: str) -> tuple[tuple[str, str], list[list[float]]]:
        found = [[searches[value, seed] for seed in seeds] for value in values]
        return (setting, "seed"), [
            [getattr(each, name) if each.trainings else math.nan for each in row] for row in found
        ]

    return xr.Dataset(
        {
            "critical_learning_rate": column("critical"),
            "low": column("low"),
            "high": column("high"),
            "trainings": column("trainings"),
            "theory": (("closure", setting), theory.values),
        },
        coords={setting: values, "seed": seeds, "closure": theory["closure"].values},
    )
