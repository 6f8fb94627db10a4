"""The critical learning rate by bisection: a few trainings for each gamma instead of a row."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import InputError
from normscope.meanfield import CLOSURES
from normscope.results import Store, record_key
from normscope.sweeps.cells import Cell, Unit, grid_cells
from normscope.sweeps.checked import check_buildable, check_settings, checked_axes, value_list
from normscope.sweeps.diagram import complete
from normscope.sweeps.engines import open_engine
from normscope.sweeps.phase_diagram import refuse_axes, seed_list
from normscope.sweeps.sweep import opened, sweep
from normscope.sweeps.theory import critical_rates
from normscope.sweeps.together import train_units
from normscope.sweeps.training_cell import has_diverged
from normscope.sweeps.training_settings import Training
from normscope.sweeps.work import Work

__all__ = ["SEARCH", "Search", "boundary"]

# Records of their own: alone, a small net differs by rounding from one trained in a group.
SEARCH = Work("phase_boundary", train_units, revision=1, diverged=has_diverged)
TOLERANCE = 0.05
FINEST = 1e-5  # of the tolerance: rates have six digits
_OWN = {
    "gamma": "give its values as gammas",
    "learning_rate": "it is what is searched for",
}
_WIDEST = 1e8  # the search ends without a bracket beyond this factor from its start


@dataclass
class Search:
    """Bisection for one critical rate: which rate to try next, given what became of the others.

    Args:
        start: the first rate to try.
        tolerance: relative width of the bracket at which the search ends.
        low: largest rate known to converge.
        high: smallest rate known to diverge.

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

    def next_rate(self) -> float | None:
        """The rate to try; None: found, or nowhere near."""
        if self.high <= self.low * (1 + self.tolerance):
            return None
        if self.low and self.high < math.inf:
            middle = _rounded(math.sqrt(self.low * self.high))
            return None if middle in (self.low, self.high) else middle
        if not self.low and self.high == math.inf:
            return _rounded(self.start)
        # the theory is a factor of two off at most places: widen slowly, then faster
        factor = 1.5 ** (2 ** max(0, self.trainings - 1))
        rate = self.low * factor if self.low else self.high / factor
        too_far = not self.start / _WIDEST <= rate <= self.start * _WIDEST
        return None if too_far else _rounded(rate)

    def learn(self, rate: float, diverged: bool) -> None:
        """Take in what became of a rate."""
        self.trainings += 1
        if diverged:
            self.high = min(self.high, rate)
        else:
            self.low = max(self.low, rate)

    @property
    def critical(self) -> float:
        """Middle of the bracket; not-a-number without one."""
        bracketed = self.low > 0 and self.high < math.inf
        return math.sqrt(self.low * self.high) if bracketed else math.nan


def boundary(
    gammas: Sequence[float],
    *,
    seeds: int | Sequence[int] = 1,
    tolerance: float = TOLERANCE,
    store: Store | str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda label: None,
    engine: str = "local",
    workers: int = 1,
    threads: int = 1,
    address: str | None = None,
    max_attempts: int = 3,
    **settings: Any,
) -> xr.Dataset:
    """Critical learning rate for each gamma and seed, by bisection that begins at the theory's.

    Every training is a record of the store: an interrupted search goes on. All gammas and seeds
    take their next step together, so that workers share the load.

    Args:
        gammas: initial scales of the normalization.
        seeds: how many repetitions, or their seeds.
        tolerance: relative width of the bracket at the end, at least 0.00001.
        store: keeps the trainings: a store, or the path of its file.
        progress: called with a label as trainings end.
        engine: local, ray or dask.
        workers: trainings at the same time.
        threads: of each worker.
        address: of a Ray or Dask cluster that runs already.
        max_attempts: how often a training may lose its worker.
        **settings: as those of `phase_diagram`.

    Returns:
        ``critical_learning_rate``, ``low``, ``high``, ``trainings`` (gamma, seed) and ``theory``
        (closure, gamma); not-a-number where no bracket was found.

    Raises:
        InputError: if the tolerance is too small or infinite.
    """
    if not FINEST <= tolerance < math.inf:
        raise InputError(f"tolerance must be at least {FINEST:g} and finite, got {tolerance}.")
    fixed, scales, all_seeds = _planned(gammas, settings, seeds)
    theory = critical_rates(Training.of(fixed), "gamma", scales)
    searches = {
        (gamma, seed): Search(_start(column), tolerance)
        for gamma, column in zip(scales, theory.T, strict=True)
        for seed in all_seeds
    }
    with opened(store) as kept, open_engine(engine, workers, threads, address) as ready:
        running = {
            "engine": ready,
            "threads": threads,
            "max_attempts": max_attempts,
            "progress": progress,
        }
        while _take_step(searches, fixed, kept, running):
            pass
    found = _labelled(searches, scales, all_seeds, theory)
    return found.assign_attrs(settings=json.dumps(fixed), tolerance=tolerance)


def _planned(
    gammas: Sequence[float], settings: Mapping[str, Any], seeds: int | Sequence[int]
) -> tuple[dict[str, Any], list[float], list[int]]:
    """All settings but the two that vary, the gammas and the seeds, checked."""
    refuse_axes(settings, _OWN)
    check_settings(settings)
    axes, all_seeds = checked_axes({"gamma": value_list("gammas", gammas)}), seed_list(seeds)
    fixed = complete(settings)
    grid_cells(axes, fixed, all_seeds)  # refuses what is empty or doubled
    check_buildable(axes, fixed, all_seeds[0])
    fixed.pop("learning_rate"), fixed.pop("gamma")
    return fixed, axes["gamma"], all_seeds


def _take_step(
    searches: dict[tuple[float, int], Search],
    settings: dict[str, Any],
    store: Store,
    running: dict[str, Any],
) -> bool:
    """Train at the next rate of every search that is not over; whether there was one."""
    wanted = {place: search.next_rate() for place, search in searches.items()}
    cells = {
        (gamma, seed): Cell({**settings, "gamma": gamma, "learning_rate": rate}, seed)
        for (gamma, seed), rate in wanted.items()
        if rate is not None
    }
    if not cells:
        return False
    report = sweep(SEARCH, [Unit((cell,)) for cell in cells.values()], store, **running)
    if report.failures:
        raise InputError(f"a training of the search failed: {report.failures[0].error}")
    for place, cell in cells.items():
        key = record_key(SEARCH.experiment, cell.parameters, cell.seed, SEARCH.revision)
        diverged = SEARCH.diverged(store.get(key).dataset)
        searches[place].learn(cell.parameters["learning_rate"], diverged)
    return True


def _start(rates: np.ndarray) -> float:
    """The theory's rate, of the first closure that has one."""
    known = rates[np.isfinite(rates) & (rates > 0)]
    return float(known[0]) if len(known) else 0.1


def _rounded(rate: float) -> float:
    """Six digits: enough for 5 %, and the same in every run."""
    return float(f"{rate:.6g}")


def _labelled(
    searches: dict[tuple[float, int], Search],
    gammas: list[float],
    seeds: list[int],
    theory: np.ndarray,
) -> xr.Dataset:
    def column(name: str) -> tuple[tuple[str, str], list[list[float]]]:
        values = [[getattr(searches[g, s], name) for s in seeds] for g in gammas]
        return ("gamma", "seed"), values

    return xr.Dataset(
        {
            "critical_learning_rate": column("critical"),
            "low": column("low"),
            "high": column("high"),
            "trainings": column("trainings"),
            "theory": (("closure", "gamma"), theory),
        },
        coords={"gamma": gammas, "seed": seeds, "closure": list(CLOSURES)},
    )
