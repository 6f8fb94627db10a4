"""Where the cells are computed: joblib's processes here, or its Ray and Dask backends elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import joblib
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import BrokenProcessPool

from normscope.errors import StateError
from normscope.registry import Registry
from normscope.sweeps.worker import Answer, follow_parent

__all__ = ["ENGINES", "LEAST", "Engine", "Opening", "open_engine"]

LEAST = 2  # joblib's workers: a single one would be this process, whatever the engine
Call = tuple[Callable[..., Answer], tuple[Any, ...], dict[str, Any]]  # as joblib.delayed makes it


@dataclass(frozen=True)
class Engine:
    """An engine that is ready.

    Args:
        workers: calls that run at the same time.
        options: of `joblib.Parallel`, besides those that all engines share.
        lost: the exceptions that tell of a worker's death.
    """

    workers: int
    options: dict[str, Any] = field(default_factory=dict)
    lost: tuple[type[BaseException], ...] = ()

    @property
    def is_this_process(self) -> bool:
        """Whether a call is computed when it is drawn, in the thread that draws it."""
        return self.workers == 1 and not self.lost

    def stream(self, calls: Iterable[Call], at_once: int) -> Generator[Answer, None, None]:
        """Answers as they come.

        Args:
            calls: drawn one by one, when there is room; by whichever thread has room to fill.
            at_once: the most calls under way.

        Returns:
            A generator; closing it ends the calls under way.
        """
        if self.is_this_process:
            return (function(*given, **named) for function, given, named in calls)
        parallel = joblib.Parallel(
            n_jobs=max(self.workers, LEAST),
            batch_size=1,
            pre_dispatch=at_once,
            return_as="generator_unordered",
            **self.options,
        )
        answers: Generator[Answer, None, None] = parallel(calls)
        return answers


Opening = Callable[[int, int, str | None], AbstractContextManager[Engine]]
ENGINES: Registry[Opening] = Registry("engine", modules=["normscope.sweeps.clusters"])
"""What runs the cells, by name: local, ray or dask."""


@contextmanager
def open_engine(
    name: str, workers: int, threads: int, address: str | None = None
) -> Iterator[Engine]:
    """An engine by name, closed with the block, no process left behind.

    Args:
        name: local, ray or dask.
        workers: calls that run at the same time.
        threads: of each worker.
        address: of a cluster that runs already; None: one on this machine.

    Raises:
        StateError: if an address is given to an engine that has none.
    """
    if name == "local" and address is not None:
        raise StateError("the local engine has no address; choose the engine ray or dask.")
    with ENGINES[name](workers, threads, address) as engine:
        yield engine


@ENGINES.register
@contextmanager
def local(workers: int, threads: int, address: str | None) -> Iterator[Engine]:
    """Processes on this machine, the threads of their numerical libraries pinned.

    One worker is this process itself.
    """
    if workers == 1:
        yield Engine(1)
        return
    options = {"initializer": follow_parent, "initargs": (os.getpid(),), "max_nbytes": None}
    try:
        with joblib.parallel_config("loky", inner_max_num_threads=threads):
            yield Engine(workers, options, (BrokenProcessPool,))
    finally:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)
