"""Where cells are computed: local processes by joblib, or a Ray or Dask cluster by its backends.

A cluster engine joins a cluster at an address, or starts one on this machine for the sweep. Both
are optional extras: ``pip install normscope[ray]``, ``pip install normscope[dask]``.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import joblib
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import BrokenProcessPool

from normscope.errors import StateError
from normscope.registry import Registry

MIN_JOBS = 2  # with a single job joblib computes in this process, whatever the backend
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # as joblib.delayed makes it

_POLL_SECONDS = 0.5  # between two checks that the parent lives


@dataclass(frozen=True)
class Engine:
    """An open engine.

    Args:
        workers: calls that run at the same time.
        options: of `joblib.Parallel`, besides those that all engines share.
        lost: the exceptions raised after a worker's death.
    """

    workers: int
    options: dict[str, Any] = field(default_factory=dict)
    lost: tuple[type[BaseException], ...] = ()

    @property
    def is_this_process(self) -> bool:
        """Whether a call is computed when it is drawn, in the thread that draws it."""
        return self.workers == 1 and not self.lost

    def stream(self, calls: Iterable[Call], at_once: int) -> Generator[Any, None, None]:
        """Return results in the order in which they are ready.

        Args:
            calls: drawn one by one, when a worker is free; from any thread.
            at_once: the most calls under way.

        Returns:
            A generator; closing it ends the calls under way.
        """
        if self.is_this_process:
            return (function(*given, **named) for function, given, named in calls)
        parallel = joblib.Parallel(
            n_jobs=max(self.workers, MIN_JOBS),
            batch_size=1,
            pre_dispatch=at_once,
            return_as="generator_unordered",
            **self.options,
        )
        results: Generator[Any, None, None] = parallel(calls)
        return results


ENGINES: Registry[Callable[[int, int, str | None], AbstractContextManager[Engine]]] = Registry(
    "engine"
)
"""Engines by name: local, ray or dask."""


@contextmanager
def open_engine(
    name: str, workers: int, threads: int, address: str | None = None
) -> Iterator[Engine]:
    """Open an engine by name; its processes end with the block.

    Args:
        name: local, ray or dask.
        workers: calls that run at the same time.
        threads: of each worker.
        address: of a running cluster; None: start one on this machine.

    Raises:
        StateError: if an address is given to the local engine.
    """
    if name == "local" and address is not None:
        raise StateError("the local engine has no address; choose the engine ray or dask.")
    with ENGINES[name](workers, threads, address) as engine:
        yield engine


@ENGINES.register
@contextmanager
def local(workers: int, threads: int, address: str | None) -> Iterator[Engine]:
    """Processes on this machine, with a fixed number of threads; one worker is this process."""
    if workers == 1:
        yield Engine(1)
        return
    options = {"initializer": follow_parent, "initargs": (os.getpid(),), "max_nbytes": None}
    try:
        with joblib.parallel_config("loky", inner_max_num_threads=threads):
            yield Engine(workers, options, (BrokenProcessPool,))
    finally:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def follow_parent(parent: int) -> None:
    """Make this process end with its parent, and leave Ctrl-C to it.

    A parent that is killed cannot stop its workers, so each worker polls.

    Args:
        parent: its process number.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="normscope parent watch").start()


@ENGINES.register
@contextmanager
def ray(workers: int, threads: int, address: str | None) -> Iterator[Engine]:
    """Actors of a Ray cluster; without an address one on this machine, ended with the sweep."""
    library = _import_extra("ray")
    backends = importlib.import_module("ray.util.joblib.ray_backend")
    died = importlib.import_module("ray.exceptions").RayActorError

    class Streaming(backends.RayBackend):  # type: ignore[misc, name-defined]  # known when it runs
        """Ray's backend; its pool returns results one by one, which it does not declare."""

        supports_return_generator = True

    joblib.register_parallel_backend("normscope_ray", Streaming)
    started_here = not library.is_initialized()
    if started_here:
        where: dict[str, Any] = {"address": address}
        if address is None:
            # a single worker is one of two actors, the other of which is idle
            where = {"num_cpus": max(workers, MIN_JOBS) * threads, "include_dashboard": False}
        library.init(log_to_driver=False, logging_level=logging.ERROR, **where)
    logging.getLogger("ray.util.multiprocessing.pool").setLevel(logging.ERROR)
    try:
        _check_cores(library, workers, threads)
        with joblib.parallel_config("normscope_ray", ray_remote_args={"num_cpus": threads}):
            yield Engine(workers, {}, (died,))
    finally:
        if started_here:
            library.shutdown()


def _check_cores(library: Any, workers: int, threads: int) -> None:
    """Refuse more workers than a cluster has processors for: Ray would wait for ever."""
    there = int(library.cluster_resources().get("CPU", 0))
    needed = max(workers, MIN_JOBS) * threads
    if needed > there:
        raise StateError(
            f"the Ray cluster has {there} processors, and {workers} workers of {threads} threads "
            f"need {needed}; ask for fewer with --workers or --threads, or add nodes."
        )


@ENGINES.register
@contextmanager
def dask(workers: int, threads: int, address: str | None) -> Iterator[Engine]:
    """Workers of a Dask cluster; without an address one on this machine, ended with the sweep.

    Dask moves the cell of a dead worker to another one, up to its setting
    ``distributed.scheduler.allowed-failures``; here that is 0, so that every death counts.
    """
    distributed = _import_extra("distributed")
    joblib.register_parallel_backend("normscope_dask", _dask_backend())
    # Dask's default environment also sets MALLOC_TRIM_THRESHOLD_, which returns freed memory to the
    # system after every large tensor: trainings of width 1000 took a third longer.
    environment = {f"{name}_NUM_THREADS": threads for name in ("OMP", "MKL", "OPENBLAS")}
    settings = {
        "distributed.scheduler.allowed-failures": 0,
        "distributed.nanny.pre-spawn-environ": environment,
    }
    with importlib.import_module("dask").config.set(settings), ExitStack() as opened:
        cluster: Any = address
        if address is None:
            cluster = opened.enter_context(
                distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                )
            )
        client = opened.enter_context(distributed.Client(cluster))
        with joblib.parallel_config("normscope_dask", client=client, wait_for_workers_timeout=60):
            yield Engine(workers, {}, (distributed.scheduler.KilledWorker,))


def _dask_backend() -> type:
    """Joblib's backend of Dask, which waits for ever after a worker's death, made to report it."""
    backends = importlib.import_module("joblib._dask")

    class Reporting(backends.DaskDistributedBackend):  # type: ignore[misc, name-defined]
        """Calls back after an error too, with the error."""

        async def _collect(self) -> None:
            while self._continue:
                async for future, result in self.waiting_futures:
                    pending, callback = self._results.pop(future), self._callbacks.pop(future)
                    if future.status == "error":
                        pending.set_exception(result[1])
                        callback(result[1])
                    else:
                        pending.set_result(result)
                        callback(result)
                await asyncio.sleep(0.01)

        def retrieve_result_callback(self, out: Any) -> Any:
            if isinstance(out, BaseException):
                raise out
            return super().retrieve_result_callback(out)

    return Reporting


def _import_extra(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = "dask" if name == "distributed" else name
        raise StateError(
            f"the engine {extra} needs a package that is not installed; run "
            f"'pip install normscope[{extra}]', or choose the engine local."
        ) from error
