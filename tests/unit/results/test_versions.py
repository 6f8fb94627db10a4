"""Versions that records ran on, in new files and in those of before they were kept."""

import sqlite3

import pytest
import xarray as xr

from normscope.report import report_of
from normscope.results import Store, versions
from normscope.results.versions import present_versions


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
    monkeypatch.setattr(versions, "_present_text", lambda: '{"torch": "9.0"}')
    fill(path, 1)
    with Store(path, read_only=True) as store:
        assert store.versions("demo") == [here, {"torch": "9.0"}]
    (section,) = report_of([path]).sections
    assert section.versions["torch"] == f"{here['torch']}, 9.0"
    assert section.versions["python"] == f"{here['python']}, not recorded"


def test_record_that_is_started_anew_has_its_last_versions(path, monkeypatch):
    monkeypatch.setattr(versions, "_present_text", lambda: '{"torch": "9.0"}')
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
