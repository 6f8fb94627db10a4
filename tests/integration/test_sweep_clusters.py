"""The same grid on Ray and on Dask, a worker killed in the middle: equal to the bit."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import xarray as xr

from normscope.results import Store
from normscope.sweeps import TRAININGS, Diagram, sweep

AXES = {"gamma": [0.3, 1.0, 3.0], "learning_rate": [0.003, 0.01, 0.1, 1.0]}
SETTINGS = {"epochs": 2, "width": 24, "samples": 640, "test_samples": 100}
WORKERS = {"ray": "ray::PoolActor", "dask": "spawn_main"}  # how their processes call themselves


def descendants(process):
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def command_of(process):
    return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")


def contents(store):
    return {record.key: (record.state, record.dataset.load()) for record in store.select()}


@pytest.mark.extras
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # the clusters' own
@pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_cluster_gives_the_same_bits_and_survives_a_dead_worker(engine, workers):
    units = Diagram(AXES, SETTINGS, [0, 1, 2]).units
    with Store(":memory:") as store:
        sweep(TRAININGS, units, store)
        expected = contents(store)
    killed = []

    def kill_one(event):
        if not killed:
            found = [p for p in descendants(os.getpid()) if WORKERS[engine] in command_of(p)]
            os.kill(found[-1], signal.SIGKILL)
            killed.append(found[-1])

    with Store(":memory:") as store:
        report = sweep(TRAININGS, units, store, engine=engine, workers=workers, progress=kill_one)
        assert not report.failures
        found = contents(store)
    assert killed
    assert found.keys() == expected.keys()
    for key, (state, dataset) in expected.items():
        assert found[key][0] == state
        xr.testing.assert_identical(found[key][1], dataset)


def test_workers_that_a_ray_cluster_cannot_hold_are_refused():
    from normscope.errors import StateError
    from normscope.sweeps.engines import _check_cores

    cluster = SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0})
    _check_cores(cluster, workers=2, threads=2)
    with pytest.raises(StateError, match="has 4 processors, and 3 workers of 2 threads need 6"):
        _check_cores(cluster, workers=3, threads=2)


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_missing_package_is_told(engine, monkeypatch):
    from normscope.errors import StateError

    monkeypatch.setitem(sys.modules, "distributed" if engine == "dask" else "ray", None)
    with Store(":memory:") as store, pytest.raises(StateError, match=rf"normscope\[{engine}\]"):
        sweep(TRAININGS, Diagram(AXES, SETTINGS, [0]).units, store, engine=engine, workers=2)
