"""The sweep: results stored once, failures told, interruptions and dead workers survived."""

import os
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import pytest
from tests.unit.sweeps.work import CALLS, WORK, units

from normscope.errors import InputError, StateError, UnknownNameError
from normscope.results import State, Store
from normscope.sweeps import Engine, sweep


@pytest.fixture(autouse=True)
def _no_calls():
    CALLS.clear()


def results(store):
    return {
        record.parameters["value"]: float(record.dataset["square"])
        for record in store.select("squares")
        if record.state.has_result
    }


def test_every_cell_is_a_record_and_computed_once(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        report = sweep(WORK, units([1, 2, 3, 99]), store)
        assert (report.cells, report.found, report.diverged) == (4, 0, 1)
        assert results(store) == {1: 1.0, 2: 4.0, 3: 9.0, 99: 9801.0}
        assert [r.parameters["value"] for r in store.select(state="diverged")] == [99]
    with Store(tmp_path / "s.sqlite") as store:
        again = sweep(WORK, units([1, 2, 3, 4, 99]), store)
    assert (again.cells, again.found) == (5, 4)
    assert sorted(CALLS) == [1, 2, 3, 4, 99]


def test_failure_is_told_and_tried_again():
    with Store(":memory:") as store:
        report = sweep(WORK, units([1, 2, 3], faulty=2), store)
        (failure,) = report.failures
        assert failure.cell.parameters["value"] == 2
        assert "ValueError: 2 is not to my liking" in failure.error
        assert "work.py" in failure.error
        assert results(store) == {1: 1.0, 3: 9.0}
        CALLS.clear()
        sweep(WORK, units([1, 2, 3], faulty=2), store)
        assert CALLS == [2]


def test_interruption_leaves_nothing_running_and_the_sweep_goes_on():
    def stop(event):
        if event.done == 2:
            raise KeyboardInterrupt

    with Store(":memory:") as store:
        with pytest.raises(KeyboardInterrupt):
            sweep(WORK, units(range(6)), store, progress=stop)
        counts = store.counts("squares")
        assert counts[State.FINISHED] == 2
        assert counts[State.RUNNING] == 0
        sweep(WORK, units(range(6)), store)
        assert sorted(CALLS) == list(range(6))


def test_store_that_fails_ends_the_sweep_and_keeps_what_is_finished(monkeypatch):
    with Store(":memory:") as store:
        finish = store.finish
        full = iter([False, False, True, False, False, False])

        def finish_until_full(*arguments, **options):
            if next(full):
                raise StateError("the disk is full")
            finish(*arguments, **options)

        monkeypatch.setattr(store, "finish", finish_until_full)
        with pytest.raises(StateError, match="disk is full"):
            sweep(WORK, units(range(5)), store)
        assert len(results(store)) == 2
        assert store.counts()[State.RUNNING] == 0
        assert not sweep(WORK, units(range(5)), store).failures
        assert len(results(store)) == 5


def test_progress_counts_cells():
    events = []
    with Store(":memory:") as store:
        sweep(WORK, units([1, 2]), store, progress=events.append)
        sweep(WORK, units([1, 2, 3]), store, progress=events.append)
    assert list(map(str, events)) == ["1 of 2 cells", "2 of 2 cells", "3 of 3 cells"]
    assert [each.kept for each in events] == [0, 0, 2]


def test_wrong_arguments_are_refused():
    with Store(":memory:") as store:
        with pytest.raises(InputError, match="workers must be at least 1"):
            sweep(WORK, units([1]), store, workers=0)
        with pytest.raises(UnknownNameError, match="unknown engine 'lokal'; did you mean 'local'"):
            sweep(WORK, units([1]), store, engine="lokal")
        with pytest.raises(StateError, match="has no address"):
            sweep(WORK, units([1]), store, address="here:1")


@pytest.mark.slow
def test_dead_worker_costs_an_attempt_and_the_sweep_goes_on(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        report = sweep(WORK, units(range(6), deadly=1), store, workers=2, max_attempts=2)
        (failure,) = report.failures
        assert failure.cell.parameters["value"] == 1
        assert "died 2 times" in failure.error
        assert set(results(store)) == set(range(6)) - {1}
        attempts = {r.parameters["value"]: r.attempts for r in store.select()}
        assert attempts[1] == 2
        # who was in flight lost one attempt and not two: suspects are tried again alone
        assert max(attempts.values()) == 2
        assert min(attempts.values()) == 1
        assert store.counts()[State.RUNNING] == 0
    assert CALLS == []  # nothing of it ran in this process


class SlowDeque(deque):
    """Takes its time between giving a unit away and returning it."""

    def popleft(self):
        value = super().popleft()
        time.sleep(0.3)
        return value


class LostError(Exception):
    pass


class DyingEngine(Engine):
    """Its first pool dies while another thread is just drawing a unit; the next ones work."""

    pools = 0

    def stream(self, calls, at_once):
        object.__setattr__(self, "pools", self.pools + 1)
        if self.pools > 1:
            yield from (function(*given, **named) for function, given, named in calls)
            return
        thread = threading.Thread(target=lambda: next(calls, None))
        thread.start()
        time.sleep(0.1)
        raise LostError
        yield


def test_unit_that_is_just_being_drawn_when_a_worker_dies_is_not_lost(monkeypatch):
    monkeypatch.setattr("normscope.sweeps.run.deque", SlowDeque)
    with Store(":memory:") as store:
        report = sweep(WORK, units([1, 2]), store, engine=DyingEngine(2, {}, (LostError,)))
        assert report.failures == ()
        assert results(store) == {1: 1.0, 2: 4.0}


DEADLY = """
import sys
from tests.unit.sweeps.work import WORK, units
from normscope.results import Store
from normscope.sweeps import sweep
with Store(sys.argv[1]) as store:
    report = sweep(WORK, units(range(4), deadly=1), store, workers=1, max_attempts=2)
print(*(f"{failure.cell.parameters['value']}: {failure.error}" for failure in report.failures))
"""


@pytest.mark.slow
def test_cell_that_kills_the_only_process_is_failed_by_the_next_sweep(tmp_path):
    path = tmp_path / "s.sqlite"
    command = [sys.executable, "-c", DEADLY, str(path)]
    options = {"cwd": Path(__file__).parents[3], "capture_output": True, "text": True}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.run(command, env=environment, **options)
    assert first.returncode == -9
    second = subprocess.run(command, env=environment, **options)
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith("1: the worker died 2 times")
    with Store(path, read_only=True) as store:
        assert set(results(store)) == {0, 2, 3}
        assert store.counts()[State.FAILED] == 1
