"""Tables of the results of ``learning_rate_choice.py``: all numbers come from the stored runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import version

from learning_rate_choice_networks import Network

GOAL_MEDIAN, GOAL_WORST, GOAL_COST = 0.03, 0.15, 4.0
HALF_LIMIT = "half limit"
FINDERS = ("torch-lr-finder", "Lightning", "fastai valley")
ADVICE = "normscope"
EFFORTS = {"normscope quick": "quick", ADVICE: "default", "normscope thorough": "thorough"}
COLUMNS = (*FINDERS, "3e-4", HALF_LIMIT, *EFFORTS)


@dataclass(frozen=True)
class Answer:
    """What a tool suggested for a network, and what came of it.

    Args:
        rate: suggested; None if there is no suggestion.
        excess: of the measure over the grid's best, as a fraction; infinite if training failed or
            there was no suggestion.
        range_tests: processor time of the tool in units of 100 training steps.
    """

    rate: float | None
    excess: float
    range_tests: float


@dataclass(frozen=True)
class Row:
    """One network: the best of the grid, over how many data orders, and the tools' answers."""

    network: Network
    best_rate: float
    best_loss: float
    orders: int
    answers: dict[str, Answer] = field(default_factory=dict)


def percent(excess: float) -> str:
    """An excess in percent, of two digits at least."""
    if math.isinf(excess):
        return "fails"
    value = 100 * excess
    shown = f"{value:.1f} %" if abs(value) < 10 else f"{value:.0f} %"
    return shown.replace("-0.0 ", "0.0 ")


def summary(rows: list[Row], tool: str) -> tuple[float, float]:
    """Median and worst excess of a tool."""
    excess = sorted(row.answers[tool].excess for row in rows if tool in row.answers)
    return (statistics.median(excess), excess[-1]) if excess else (math.nan, math.nan)


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(head)
    drawn = [head, ["-"] * len(head), *map(list, lines)]
    return "\n".join("| " + " | ".join(line) + " |" for line in drawn)


def present(rows: list[Row]) -> list[str]:
    """Tools that answered for every network."""
    return [tool for tool in COLUMNS if all(tool in row.answers for row in rows)]


def summary_table(rows: list[Row]) -> str:
    """Each tool's median and worst excess, networks for tuning and held out apart, and its cost."""
    parts = {"all": rows} | {
        name: [row for row in rows if row.network.held_out == held_out]
        for name, held_out in (("tuning", False), ("held out", True))
    }
    head = [
        f"{name} ({len(part)}): {of}" for name, part in parts.items() for of in ("median", "worst")
    ]
    lines = []
    for tool in present(rows):
        cells = [percent(value) for part in parts.values() for value in summary(part, tool)]
        costs = [row.answers[tool].range_tests for row in rows]
        cost = f"{statistics.median(costs):.1f}, {max(costs):.1f}" if tool != "3e-4" else "none"
        lines.append([tool, *cells, cost])
    return table(["tool", *head, "range tests: median, most"], lines)


def excess_table(rows: list[Row]) -> str:
    """The excess of every tool on every network."""
    tools = present(rows)
    lines = (
        [_label(row), row.network.optimizer, f"{row.best_rate:.3g}", f"{row.best_loss:.4g}"]
        + [percent(row.answers[tool].excess) for tool in tools]
        for row in rows
    )
    return table(["network", "optimizer", "best rate", "its loss", *tools], lines)


def rate_table(rows: list[Row]) -> str:
    """The rate of every tool on every network."""
    tools = [tool for tool in present(rows) if tool != "3e-4"]
    lines = (
        [_label(row), f"{row.best_rate:.3g}"]
        + ["none" if (rate := row.answers[tool].rate) is None else f"{rate:.3g}" for tool in tools]
        for row in rows
    )
    return table(["network", "best rate", *tools], lines)


def cost_table(rows: list[Row]) -> str:
    """Time of every tool on every network, in range tests."""
    tools = [tool for tool in present(rows) if tool not in ("3e-4", HALF_LIMIT)]
    lines = (
        [_label(row), *(f"{row.answers[tool].range_tests:.1f}" for tool in tools)] for row in rows
    )
    return table(["network", *tools], lines)


def verdicts(rows: list[Row]) -> str:
    """The goals, and whether the default effort meets them."""
    held_out = [row for row in rows if row.network.held_out]
    lines = []
    for name, part in (("all networks", rows), ("the held-out networks", held_out)):
        median, worst = summary(part, ADVICE)
        goals = ("median", median, GOAL_MEDIAN), ("worst", worst, GOAL_WORST)
        reached = (
            f"{of} excess {percent(value)}, goal {percent(goal)}: {_met(value <= goal)}"
            for of, value, goal in goals
        )
        lines.append(f"- {name}: {'; '.join(reached)}; {_standing(part)}.")
    costs = [row.answers[ADVICE].range_tests for row in rows]
    within = sum(cost <= GOAL_COST for cost in costs)
    lines.append(
        f"- cost: at most {GOAL_COST:.0f} range tests on {within} of {len(rows)} networks, "
        f"{max(costs):.1f} at most: {_met(within == len(rows))}."
    )
    return "\n".join(lines)


def _standing(rows: list[Row]) -> str:
    """Whether the default effort is ahead of every finder, in the median and in the worst."""
    own = summary(rows, ADVICE)
    behind = [
        f"{tool} ({of})"
        for tool in FINDERS
        for of, value, other in zip(("median", "worst"), own, summary(rows, tool), strict=True)
        if not value < other
    ]
    if behind:
        return "**not ahead** of " + ", ".join(behind)
    return "ahead of every finder in the median and the worst"


def worst_cases(rows: list[Row], count: int = 5) -> str:
    """The networks where the default effort is furthest from the best."""
    ordered = sorted(rows, key=lambda row: -row.answers[ADVICE].excess)[:count]
    lines = (
        f"- {_label(row)}, {row.network.optimizer}: recommended {row.answers[ADVICE].rate:.3g}, "
        f"best {row.best_rate:.3g}, excess {percent(row.answers[ADVICE].excess)}."
        for row in ordered
    )
    return "\n".join(lines)


def _met(met: bool) -> str:
    return "met" if met else "**missed**"


def _label(row: Row) -> str:
    return row.network.name + " (held out)" * row.network.held_out


def versions(rows: list[Row]) -> str:
    """What was run."""
    packages = ("torch", "torch-lr-finder", "lightning", "transformers")
    found = ", ".join(f"{name} {version(name)}" for name in packages)
    orders = sorted({row.orders for row in rows})
    return f"The tables: data orders per rate: {', '.join(map(str, orders))}; {found}; one thread."


PARTS: dict[str, Callable[[list[Row]], str]] = {
    "versions": versions,
    "summary": summary_table,
    "verdicts": verdicts,
    "worst": worst_cases,
    "excess": excess_table,
    "rates": rate_table,
    "costs": cost_table,
}


def fill(text: str, rows: list[Row]) -> str:
    """Return a page with new contents between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``."""
    for name, part in PARTS.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{part(rows)}\n{end}{rest.split(end)[1]}"
    return text
