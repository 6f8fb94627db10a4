"""Versions of the user's own files in the report of a store."""

import sqlite3
from itertools import product

import pytest
import xarray as xr

from normscope.report import report_of
from normscope.results import Store, times

NOVEMBER = 1794886800.0  # 2026-11-17 03:40 UTC
OLD, NEW = "sha256-aaa", "sha256-bbb"


@pytest.fixture
def fill(tmp_path, monkeypatch):
    """Adds the trainings of one version of a model's file, an hour later than those before."""
    path, hours = tmp_path / "mine.sqlite", iter(range(9))

    def added(code, model="net.py:build"):
        now = NOVEMBER + 3600 * next(hours)
        monkeypatch.setattr(times.time, "time", lambda: now)
        with Store(path) as store:
            for gamma, rate in product((0.5, 1.0), (0.1, 1.0)):
                parameters = {"model": model, "gamma": gamma, "learning_rate": rate, "code": code}
                result = xr.Dataset({"test_loss": gamma, "outcome": "finished"})
                store.compute("phase_diagram", parameters, 0, lambda made=result: made)
        return path

    return added


def test_newest_version_stands_first_and_each_is_told_with_its_time(fill):
    fill(OLD)
    report = report_of([fill(NEW)])
    (section,) = report.sections
    first, second = section.paragraphs[1:3]
    assert first.startswith(
        f"newest version of the user's files, of 2026-11-17 04:40 UTC (code {NEW}): Of 4 cells"
    )
    assert second.startswith(
        f"earlier version of the user's files, of 2026-11-17 03:40 UTC (code {OLD}): Of 4 cells"
    )
    assert [NEW in each.caption for each in section.pictures] == [True, False]
    assert NEW in report.findings[1]
    place = section.tables[0].columns.index("code")
    assert [row[place] for row in section.tables[0].rows] == [NEW] * 4 + [OLD] * 4


def test_without_times_the_version_added_last_is_the_newest(fill):
    fill(OLD)
    path = fill(NEW)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE started_at")
    connection.close()
    (section,) = report_of([path]).sections
    assert section.paragraphs[1].startswith(f"newest version of the user's files (code {NEW}): ")
    assert section.paragraphs[2].startswith(f"earlier version of the user's files (code {OLD}): ")


def test_files_of_two_models_are_no_versions_of_each_other(fill):
    fill(OLD, "other.py:build")
    (section,) = report_of([fill(NEW)]).sections
    assert section.paragraphs[1].startswith(f"code {OLD}, model other.py:build: ")
    assert section.paragraphs[2].startswith(f"code {NEW}, model net.py:build: ")
