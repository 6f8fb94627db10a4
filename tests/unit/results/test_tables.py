"""Versions and start times of records, in new files and in files without those tables."""

import sqlite3

import pytest
import xarray as xr

from normscope.report import report_of
from normscope.results import Store, tables
from normscope.results.tables import present_versions


def fill(path, *seeds):
    with Store(path) as store:
        for seed in seeds:
            store.compute("demo", {"rate": 0.1}, seed, lambda: xr.Dataset({"y": 1.0}))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.sqlite"


@pytest.fixture
def older(path):
    """A file as the first normscope wrote it, without the tables of versions."""
    fill(path, 0)
    connection = sqlite3.connect(path)
    connection.executescript("DROP TABLE started_in; DROP TABLE environments;")
    connection.close()
    return path


def test_versions_are_kept_with_the_records_that_ran(path):
    fill(path, 0, 1)
    with Store(path, read_only=True) as store:
        assert store.versions("demo") == [present_versions()]
        assert store.versions("other") == []
    (section,) = report_of([path]).sections
    assert dict(section.versions) == present_versions()


def test_pending_records_have_no_versions(path):
    with Store(path) as store:
        store.add("demo", {}, 0)
        assert store.versions("demo") == []


def test_every_set_of_versions_is_told(path, monkeypatch):
    fill(path, 0)
    here = present_versions()
    monkeypatch.setattr(tables, "_versions_json", lambda: '{"torch": "9.0"}')
    fill(path, 1)
    with Store(path, read_only=True) as store:
        assert store.versions("demo") == [here, {"torch": "9.0"}]
    (section,) = report_of([path]).sections
    assert section.versions["torch"] == f"{here['torch']}, 9.0"
    assert section.versions["python"] == f"{here['python']}, not recorded"


def test_record_that_is_started_anew_has_its_last_versions(path, monkeypatch):
    monkeypatch.setattr(tables, "_versions_json", lambda: '{"torch": "9.0"}')
    with Store(path) as store, pytest.raises(ZeroDivisionError):
        store.compute("demo", {"rate": 0.1}, 0, lambda: 1 / 0)
    monkeypatch.undo()
    fill(path, 0)
    with Store(path, read_only=True) as store:
        assert store.versions("demo") == [present_versions()]


def test_older_file_is_read_without_versions_and_says_so(older):
    before = older.read_bytes()
    (section,) = report_of([older]).sections
    assert section.versions["torch, numpy, python"].startswith("not recorded")
    assert older.read_bytes() == before


def test_older_file_takes_new_records_with_their_versions(older):
    fill(older, 0, 1)
    with Store(older, read_only=True) as store:
        assert store.versions("demo") == [{}, present_versions()]
    (section,) = report_of([older]).sections
    assert section.versions["torch"] == f"{present_versions()['torch']}, not recorded"


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""
    now = [100.0]
    monkeypatch.setattr(tables.time, "time", lambda: now[0])
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
