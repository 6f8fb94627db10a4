"""kill -9 of a sweep or of its workers: nothing is lost, doubled or changed by a bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import xarray as xr
from tests.references.killed_sweep import run

from normscope.results import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "sweep.sqlite"
    run(str(path))
    return path


def contents(path):
    with Store(path, read_only=True) as store:
        return {
            record.key: (record.state, record.parameters, record.seed, record.dataset.load())
            for record in store.select()
        }


def kills_of(whom, path, moments):
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.references.killed_sweep", whom, str(path), str(moments), "1"],
        cwd=root,
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


@pytest.mark.parametrize(
    ("whom", "moments"),
    [
        ("parent", 3),
        ("worker", 1),
        pytest.param("parent", 20, marks=[pytest.mark.slow, pytest.mark.timeout(1300)]),
        pytest.param("worker", 20, marks=[pytest.mark.slow, pytest.mark.timeout(1300)]),
    ],
)
def test_killed_sweep_ends_as_an_undisturbed_one(tmp_path, undisturbed, whom, moments):
    path = tmp_path / "sweep.sqlite"
    kills = kills_of(whom, path, moments)
    assert kills >= moments // 2  # some may come when the sweep has ended already
    assert_same(path, undisturbed)
