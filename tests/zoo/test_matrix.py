"""Every feature on every network: works with the right number, or refuses in a sentence.

Run by ``make test-zoo``, which writes the outcomes into the table of supported models.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.zoo.features import FEATURES, outcome
from tests.zoo.packages import PACKAGES, package_of
from tests.zoo.registry import ZOO

RESULTS = Path(__file__).parents[2] / "docs" / "supported_models.json"
pytestmark = [
    pytest.mark.zoo,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),  # packages of others warn of their own code
]


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, feature, record_cell):
    check("zoo", ZOO[name], feature, record_cell)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", PACKAGES)
def test_packages(name, feature, record_cell):
    if find_spec(package_of(PACKAGES[name])) is None:
        pytest.skip(f"needs {package_of(PACKAGES[name])}: pip install normscope[zoo]")
    check("packages", PACKAGES[name], feature, record_cell)


def check(group, entry, feature, record_cell):
    """Record the outcome of a cell; fail on a raw error, a wrong number, or one that is lost."""
    try:
        found = outcome(entry, feature)
    except Exception as error:
        summary = (str(error).splitlines() or [""])[0][:200]
        record_cell(group, entry.name, feature, f"fails: {type(error).__name__}: {summary}")
        raise
    record_cell(group, entry.name, feature, found)
    recorded = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    before = recorded.get(group, {}).get(entry.name, {}).get(feature, "")
    assert before != "works" or found == "works", f"worked before; now {found}"
