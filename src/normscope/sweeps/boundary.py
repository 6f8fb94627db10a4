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
from normscope.meanfield import CLOSURES
from normscope.progress import Progress, ProgressCallback, ProgressOption, callback_of
from normscope.progress_bar import shows_progress
from normscope.results import Store
from normscope.sweeps.cell import has_diverged, train_unit
from normscope.sweeps.diagram import Diagram, refuse_settings, seed_list
from normscope.sweeps.engines import open_engine
from normscope.sweeps.run import open_store, sweep
from normscope.sweeps.settings import Training, value_list
from normscope.sweeps.theory import critical_rates
from normscope.sweeps.work import Cell, Unit, Work

# Not the records of a phase diagram: a small net trained alone differs by rounding from a group.
SEARCH = Work("phase_boundary", train_unit, revision=1, diverged=has_diverged)
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

    Every training is a record of the store: an interrupted search resumes. The other seeds start
    from the bracket of the first. All searches of a round run together, so that workers share the
    load.

    Args:
        gammas: initial scales of the normalization.
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
        (closure, gamma); NaN where no bracket was found.

    Raises:
        InputError: if the tolerance is too small or infinite.
    """
    if not LEAST_TOLERANCE <= tolerance < math.inf:
        raise InputError(
            f"tolerance must be at least {LEAST_TOLERANCE:g} and finite, got {tolerance}."
        )
    show = callback_of(progress)
    fixed, gammas, seeds = _plan(gammas, settings, seeds)
    theory = critical_rates(Training.of(fixed), gammas)
    first, *others = seeds
    searches = {
        (gamma, first): Search(_start(column), tolerance)
        for gamma, column in zip(gammas, theory.T, strict=True)
    }
    rounds = itertools.count(1)
    with open_store(store) as kept, open_engine(engine, workers, threads, address) as opened:
        running = {"engine": opened, "threads": threads, "max_attempts": max_attempts}

        def run_searches() -> None:
            while _take_round(
                searches, fixed, kept, progress=_in_round(show, next(rounds)), **running
            ):
                pass

        run_searches()
        searches |= {
            (gamma, seed): searches[gamma, first].repeated() for gamma in gammas for seed in others
        }
        run_searches()
    found = _to_dataset(searches, gammas, seeds, theory)
    return found.assign_attrs(settings=json.dumps(fixed), tolerance=tolerance)


def _plan(
    gammas: Sequence[float], settings: Mapping[str, Any], seeds: int | Sequence[int]
) -> tuple[dict[str, Any], list[float], list[int]]:
    """Return all settings but the two that vary, the gammas and the seeds, checked."""
    refuse_settings(
        settings, gamma="give its values as gammas", learning_rate="it is what is searched for"
    )
    plan = Diagram(
        {"gamma": value_list("gammas", gammas)}, settings, seed_list(seeds)
    )  # checks all
    searched = ("gamma", "learning_rate")
    fixed = {name: value for name, value in plan.settings.items() if name not in searched}
    return fixed, plan.axes["gamma"], plan.seeds


def _in_round(progress: ProgressCallback, number: int) -> ProgressCallback:
    """Return a callback that adds the round of the bisection to events."""

    def send(event: Progress) -> None:
        progress(replace(event, stage=f"round {number}"))

    return send


def _take_round(
    searches: dict[tuple[float, int], Search],
    settings: dict[str, Any],
    store: Store,
    **running: Any,
) -> bool:
    """Train at the next rate of every search that has not ended; return whether there was one."""
    cells = {
        (gamma, seed): Cell({**settings, "gamma": gamma, "learning_rate": rate}, seed)
        for (gamma, seed), search in searches.items()
        if (rate := search.next_rate()) is not None
    }
    if not cells:
        return False
    report = sweep(SEARCH, [Unit((cell,)) for cell in cells.values()], store, **running)
    if report.failures:
        raise InputError(f"a training of the search failed: {report.failures[0].error}")
    for gamma_and_seed, cell in cells.items():
        diverged = SEARCH.diverged(store.get(SEARCH.key(cell)).dataset)
        searches[gamma_and_seed].learn(cell.parameters["learning_rate"], diverged)
    return True


def _start(rates: np.ndarray) -> float:
    """Return the theory's rate, of the first closure that has one."""
    known = rates[np.isfinite(rates) & (rates > 0)]
    return float(known[0]) if len(known) else 0.1


def _round(rate: float) -> float:
    """Round to six digits, so that the rates are the same in every run."""
    return float(f"{rate:.6g}")


def _to_dataset(
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
