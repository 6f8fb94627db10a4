"""The sweep: every cell that has no result yet is computed, whatever happens on the way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from normscope.errors import InputError
from normscope.results import Store
from normscope.sweeps.cells import Unit
from normscope.sweeps.engines import Engine, open_engine
from normscope.sweeps.run import Run
from normscope.sweeps.work import Report, Work

__all__ = ["opened", "sweep"]


@contextmanager
def opened(store: Store | str | os.PathLike[str] | None) -> Iterator[Store]:
    """A store that is given, or one at a path for the time of the block; None: in memory."""
    if isinstance(store, Store):
        with nullcontext(store) as given:
            yield given
        return
    with Store(":memory:" if store is None else store) as own:
        yield own


def sweep(
    work: Work,
    units: Sequence[Unit],
    store: Store,
    *,
    engine: str | Engine = "local",
    workers: int = 1,
    threads: int = 1,
    address: str | None = None,
    max_attempts: int = 3,
    progress: Callable[[Any], None] = lambda label: None,
) -> Report:
    """Compute every cell that has no result yet.

    Args:
        work: what is computed.
        units: the cells, in the order they should be computed.
        store: of the results; cells with a result there are not computed again.
        engine: local, ray or dask, or one that is open already.
        workers: units computed at the same time.
        threads: of each worker; results are equal to the bit for an equal number of threads.
        address: of a Ray or Dask cluster that runs already.
        max_attempts: how often a unit may lose its worker before it counts as failed.
        progress: called with a label after each unit.

    Returns:
        What was done; failures are told, not raised.

    Raises:
        InputError: if a number is below one.
    """
    for name, number in {
        "workers": workers,
        "threads": threads,
        "max_attempts": max_attempts,
    }.items():
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {number}.")
    begun = time.perf_counter()
    run = Run(work, units, store, max_attempts, threads, progress)
    if run.waiting and isinstance(engine, Engine):
        run.complete(engine)
    elif run.waiting:
        with open_engine(str(engine), workers, threads, address) as ready:
            run.complete(ready)
    return run.report(time.perf_counter() - begun)
