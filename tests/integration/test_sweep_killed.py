"""kill -9 of a sweep or of its workers: nothing is lost, doubled or changed by a bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr
from tests.references.killed_sweep import run

from normscope.results import Store
from normscope.sweeps import TRAININGS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "sweep.sqlite"
    run(str(path), work=TRAININGS)
    return path


def contents(path):
    with Store(path, read_only=True) as store:
        return {
            record.key: (record.state, record.parameters, record.seed, record.dataset.load())
            for record in store.select()
        }


def kills_of(whom, path, moments, workers):
    script = [sys.executable, "-m", "tests.references.killed_sweep"]
    done = subprocess.run(
        [*script, whom, str(path), str(moments), "1", str(workers)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280 if moments < 20 else 1200,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def assert_same(path, undisturbed):
    found, expected = contents(path), contents(undisturbed)
    assert found.keys() == expected.keys()
    for key, (state, parameters, seed, dataset) in expected.items():
        assert found[key][:3] == (state, parameters, seed)
        xr.testing.assert_identical(found[key][3], dataset)


LONG = [pytest.mark.slow, pytest.mark.timeout(1300)]


@pytest.mark.parametrize(
    ("whom", "moments", "workers"),
    [
        ("parent", 1, 2),
        ("worker", 1, 2),
        pytest.param("parent", 20, 1, marks=LONG),
        pytest.param("parent", 20, 2, marks=LONG),
        pytest.param("worker", 20, 2, marks=LONG),
    ],
)
def test_killed_sweep_ends_as_an_undisturbed_one(tmp_path, undisturbed, whom, moments, workers):
    path = tmp_path / "sweep.sqlite"
    assert kills_of(whom, path, moments, workers) == moments
    assert_same(path, undisturbed)
