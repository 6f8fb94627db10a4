"""Engines beyond this machine: Ray and Dask, through joblib's backends of them.

Each joins a cluster that runs at an address, or starts one on this machine for the sweep. Both are
optional extras: ``pip install normscope[ray]``, ``pip install normscope[dask]``.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import joblib

from normscope.errors import StateError
from normscope.sweeps.engines import ENGINES, LEAST, Engine

__all__ = ["dask", "ray"]


@ENGINES.register
@contextmanager
def ray(workers: int, threads: int, address: str | None) -> Iterator[Engine]:
    """Actors of a Ray cluster; without an address one on this machine, ended with the sweep."""
    library = _library("ray")
    backends = importlib.import_module("ray.util.joblib.ray_backend")
    died = importlib.import_module("ray.exceptions").RayActorError

    class Streaming(backends.RayBackend):  # type: ignore[misc, name-defined]  # known when it runs
        """Ray's backend; its pool hands results back one by one, which it does not say."""

        supports_return_generator = True

    joblib.register_parallel_backend("normscope_ray", Streaming)
    own = not library.is_initialized()
    if own:
        where: dict[str, Any] = {"address": address}
        if address is None:
            # a single worker is one of two actors, of which the other has nothing to do
            cores = max(workers, LEAST) * threads
            where = {"num_cpus": cores, "include_dashboard": False}
        library.init(log_to_driver=False, logging_level=logging.ERROR, **where)
    logging.getLogger("ray.util.multiprocessing.pool").setLevel(logging.ERROR)
    try:
        _check_cores(library, workers, threads)
        arguments = {"num_cpus": threads}
        with joblib.parallel_config("normscope_ray", ray_remote_args=arguments):
            yield Engine(workers, {}, (died,))
    finally:
        if own:
            library.shutdown()


def _check_cores(library: Any, workers: int, threads: int) -> None:
    """Refuse more workers than a cluster can hold, who would be waited for without an end."""
    there, needed = int(library.cluster_resources().get("CPU", 0)), max(workers, LEAST) * threads
    if needed > there:
        raise StateError(
            f"the Ray cluster has {there} processors, and {workers} workers of {threads} threads "
            f"need {needed}; ask for fewer with --workers or --threads, or add nodes."
        )


@ENGINES.register
@contextmanager
def dask(workers: int, threads: int, address: str | None) -> Iterator[Engine]:
    """Workers of a Dask cluster; without an address one on this machine, ended with the sweep.

    Dask moves the cell of a worker that died to another one by itself, as often as its setting
    ``distributed.scheduler.allowed-failures`` says; here that is 0, so that every death counts.
    """
    distributed = _library("distributed")
    joblib.register_parallel_backend("normscope_dask", _telling_backend())
    settings = importlib.import_module("dask").config
    died = (distributed.scheduler.KilledWorker,)
    chosen = {
        "distributed.scheduler.allowed-failures": 0,
        "distributed.nanny.pre-spawn-environ": _environment(threads),
    }
    with settings.set(chosen), ExitStack() as opened:
        place: Any = address
        if address is None:
            place = opened.enter_context(
                distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                )
            )
        client = opened.enter_context(distributed.Client(place))
        with joblib.parallel_config("normscope_dask", client=client, wait_for_workers_timeout=60):
            yield Engine(workers, {}, died)


def _environment(threads: int) -> dict[str, int]:
    """Of a Dask worker: the threads of its numerical libraries, and nothing else.

    Dask's own also holds MALLOC_TRIM_THRESHOLD_, with which freed memory goes back to the system
    after every large tensor: trainings of width 1000 took a third longer.
    """
    return {f"{name}_NUM_THREADS": threads for name in ("OMP", "MKL", "OPENBLAS")}


def _telling_backend() -> type:
    """Joblib's backend of Dask, which waits for ever after a worker's death, made to tell of it."""
    backends = importlib.import_module("joblib._dask")

    class Telling(backends.DaskDistributedBackend):  # type: ignore[misc, name-defined]
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

    return Telling


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = "dask" if name == "distributed" else name
        raise StateError(
            f"the engine {extra} needs a package that is not installed; run "
            f"'pip install normscope[{extra}]', or choose the engine local."
        ) from error
