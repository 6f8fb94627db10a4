"""Collect the cells of the table of supported models.

``make test-zoo`` runs ``pytest tests/zoo -m zoo --zoo-results docs/supported_models.json``: cells
that ran replace those in the file, others stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cells = dict[str, dict[str, dict[str, str]]]
"""Outcomes by group, model and feature."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("zoo")
    group.addoption("--zoo-results", type=Path, help="JSON file to update with the outcomes")


@pytest.fixture
def record_cell(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Return a function ``record(group, model, feature, outcome)``."""

    def record(*cell: str) -> None:
        record_property("zoo", cell)

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = _cells(terminalreporter.stats)
    file = terminalreporter.config.getoption("zoo_results", default=None)
    if file is None or not found:
        return
    update(file, found)
    terminalreporter.write_line(f"zoo: outcomes written to {file}")


def _cells(stats: dict[str, list[Any]]) -> list[tuple[str, str, str, str]]:
    reports = [report for reports in stats.values() for report in reports]
    calls = [report for report in reports if getattr(report, "when", "") == "call"]
    return [value for report in calls for name, value in report.user_properties if name == "zoo"]


def update(file: Path, found: list[tuple[str, str, str, str]]) -> None:
    """Write cells into a file of outcomes, in the order of the registries."""
    from tests.zoo.features import FEATURES
    from tests.zoo.packages import PACKAGES
    from tests.zoo.registry import ZOO

    cells: Cells = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for group, model, feature, outcome in found:
        cells.setdefault(group, {}).setdefault(model, {})[feature] = outcome
    rows = {"zoo": ZOO, "packages": PACKAGES}
    ordered = {
        group: {
            model: {f: cells[group][model][f] for f in FEATURES if f in cells[group][model]}
            for model in models
            if model in cells.get(group, {})
        }
        for group, models in rows.items()
    }
    file.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
