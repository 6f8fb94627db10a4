"""Times that records were started at, in new files and in those of before they were kept."""

import sqlite3

import pytest
import xarray as xr

from normscope.results import Store, times


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""
    now = [100.0]
    monkeypatch.setattr(times.time, "time", lambda: now[0])
    return now


def test_time_is_that_of_the_last_attempt(tmp_path, clock):
    with Store(tmp_path / "runs.sqlite") as store:
        first, second, pending = (store.add("demo", {}, seed) for seed in range(3))
        store.start(first)
        clock[0] = 200.0
        store.start(second)
        store.fail(second, "no memory")
        clock[0] = 300.0
        store.start(second)
        store.finish(second, xr.Dataset({"y": 1.0}))
        assert store.times("demo") == {first: 100.0, second: 300.0}
        assert pending not in store.times("demo")
        assert store.times("other") == {}


def test_older_file_has_no_times_until_a_record_is_started_in_it(tmp_path, clock):
    path = tmp_path / "runs.sqlite"
    with Store(path) as store:
        store.start(store.add("demo", {}, 0))
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE started_at")
    connection.close()
    with Store(path, read_only=True) as store:
        assert store.times("demo") == {}
    with Store(path) as store:
        key = store.add("demo", {}, 1)
        store.start(key)
        assert store.times("demo") == {key: 100.0}
