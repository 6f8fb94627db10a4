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


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("zoo_results", default=None)
    if file is not None and not hasattr(config, "workerinput"):  # a worker reports to its parent
        config.pluginmanager.register(Recorder(file), "zoo recorder")


class Recorder:
    """Writes each cell as it is found, so that an interrupted run keeps what it has.

    Args:
        file: the JSON file.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        found = [value for name, value in report.user_properties if name == "zoo"]
        if report.when == "call" and found:
            update(self.file, found)


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
