"""A sweep with two workers that is killed or interrupted: no process stays, the sweep goes on."""

import os
import signal
import subprocess
import sys
import time

import pytest

from normscope.errors import DataError
from normscope.results import State, Store
from normscope.sweeps import status

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sends signals to groups")
PATIENCE = 120.0  # seconds; a loaded machine takes its time to start the workers
COMMAND = ["--set", "width=300", "--set", "epochs=30", "--set", "gamma=0.3,0.5,1.0,2.0"]
COMMAND += ["--set", "lr=1e-4:1e-2:6:log", "--workers", "2"]  # seconds of work, all of it stable


def started(path):
    return subprocess.Popen(
        [sys.executable, "-m", "normscope", "sweep", "phase_diagram", "--out", str(path), *COMMAND],
        start_new_session=True,  # its own group, which its workers belong to
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def ended(path):
    """Cells with a result, as another process sees them while the sweep writes."""
    try:
        found = status(path)
    except DataError:  # the file is just being made
        return 0
    return sum(each.counts[State.FINISHED] + each.counts[State.DIVERGED] for each in found)


def group_is_gone(number):
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_killed_and_interrupted_sweeps_leave_no_process_and_no_running_cell(tmp_path):
    path = tmp_path / "phase.sqlite"
    with started(path) as killed:
        until(lambda: ended(path) >= 1)
        (live,) = status(path)
        assert live.counts[State.RUNNING] >= 1
        assert live.seconds_left is not None
        assert live.at_work
        killed.kill()
        killed.wait()
        until(lambda: group_is_gone(killed.pid))  # the workers notice by themselves
    kept = ended(path)
    assert 1 <= kept < 24
    (gone,) = status(path)
    assert (gone.at_work, gone.counts[State.RUNNING]) == (False, 0)
    assert gone.seconds_left == gone.seconds * gone.counts[State.PENDING]  # with one worker
    with started(path) as interrupted:
        until(lambda: ended(path) > kept)
        os.killpg(interrupted.pid, signal.SIGINT)  # as a terminal does
        _, error = interrupted.communicate(timeout=PATIENCE)
        assert interrupted.returncode == 130, error
        *before, line = error.splitlines()
        assert all(each.startswith("phase_diagram: ") for each in before)  # a slow machine's log
        assert line.startswith(f"normscope: interrupted; finished work is kept in {path}")
        until(lambda: group_is_gone(interrupted.pid))
    with Store(path, read_only=True) as store:
        counts = store.counts()
    assert counts[State.RUNNING] == 0
    assert kept < counts[State.FINISHED] < 24
    assert counts[State.FAILED] == 0
