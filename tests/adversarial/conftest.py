"""Options, case numbers and the summary of the adversarial tests.

``make test`` runs a fixed sample. ``pytest tests/adversarial --adversarial-cases N`` runs N new
cases of each test that takes ``case_seeds``; the seed is in the first lines and in the summary, and
``--adversarial-seed S`` runs the same cases again.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable

import pytest

_SEED = "NORMSCOPE_ADVERSARIAL_SEED"  # in the environment: workers of pytest-xdist inherit it


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("adversarial")
    group.addoption("--adversarial-cases", type=int, help="number of new cases of each test")
    group.addoption("--adversarial-seed", type=int, help="of the cases; default: a new one")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cases(sample, chunk=1): draws cases; `make test` runs ``sample`` of them"
    )


def _cases(config: pytest.Config) -> int | None:
    # not known if this file was found after the options were read, as by `make test`
    found = config.getoption("adversarial_cases", default=None)
    return None if found is None else int(found)


def _seed(config: pytest.Config) -> int:
    given = config.getoption("adversarial_seed", default=None)
    if given is not None:
        return int(given)
    if _cases(config) is None:
        return 0
    return int(os.environ.setdefault(_SEED, str(random.SystemRandom().randrange(10**9))))


def pytest_report_header(config: pytest.Config) -> str:
    return f"adversarial tests: --adversarial-seed {_seed(config)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test with the marker ``cases`` lists of seeds, one chunk for each item."""
    marker = metafunc.definition.get_closest_marker("cases")
    if marker is None or "case_seeds" not in metafunc.fixturenames:
        return
    count = _cases(metafunc.config)
    count = marker.kwargs["sample"] if count is None else count
    chunk = marker.kwargs.get("chunk", 1)
    first = _seed(metafunc.config) * 10_000_000
    seeds = [first + number for number in range(count)]
    chunks = [seeds[start : start + chunk] for start in range(0, count, chunk)]
    metafunc.parametrize("case_seeds", chunks, ids=[f"seed{each[0]}" for each in chunks])


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Count outcomes for the summary: ``count("networks", "agreed")``."""

    def record(kind: str, outcome: str, number: int = 1) -> None:
        record_property("adversarial", (kind, outcome, number))

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    totals: dict[str, Counter[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "adversarial" and report.when == "call":
                    kind, outcome, number = value
                    totals.setdefault(kind, Counter())[outcome] += number
    for kind, outcomes in sorted(totals.items()):
        parts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common(25))
        terminalreporter.write_line(f"adversarial {kind}: {outcomes.total()} ({parts})")
    if totals:
        terminalreporter.write_line(f"--adversarial-seed {_seed(terminalreporter.config)}")
