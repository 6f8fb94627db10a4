"""How much of an onset is chance: runs at many rates on many orders, and searches among them.

    python benchmarks/learning_rate_accuracy.py --cases NAME ... --resume ROWS
    python benchmarks/learning_rate_chance.py ROWS TABLES [--cases NAME ...] [--seconds 200]

The first command finds the true onsets. The second trains every case at rates around its onset, 1.2
times apart, on several orders of the data, and keeps what became of each run in TABLES; cut off by
``--seconds``, it goes on from there. In these tables it then draws three orders for the truth, the
median of their first failures, and three others for a short search like that of
``normscope.learning_rate.verification``, which begins at 0.4 to 4 times the truth. Told are the
draws in which the search is off by more than two, and the median factor, for several rules of what
makes a rate fail.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from learning_rate_cases import BATCH_SIZE, CASES

from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.stability import short_run
from normscope.learning_rate.thresholds import STEPS
from normscope.problem.problem import Problem
from normscope.training import sgd

APART = 1.2
BUDGET = 550  # of the 600 steps: the ramp takes the rest
WIDENING = 1.6
DRAWS = 400
Run = tuple[bool, int]  # whether it failed, and its steps
Rule = Callable[[list[Run]], bool | None]


def tabulated(
    name: str, center: float, runs: dict[str, list], orders: int, places: int, end: float
) -> None:
    """Fill in the runs of a case that are missing, until the time is over."""
    case = CASES[name]
    problem = Problem(case.model(), case.loss, case.samples())
    bench = TrainingSetup(problem, sgd(1.0, case.momentum), BATCH_SIZE, 0)
    for place in range(-places, places + 1):
        for order in range(orders):
            key = f"{place},{order}"
            if key in runs or time.perf_counter() > end:
                continue
            with bench.training(center * APART**place) as optimizer:
                done = short_run(problem, optimizer, BATCH_SIZE, order)
            runs[key] = [done.unstable, done.died, done.steps]


def vote(seen: list[Run]) -> bool | None:
    """Two orders that agree."""
    failed = sum(broke for broke, _ in seen)
    if failed == 2 or len(seen) - failed == 2:
        return failed == 2
    return None


def one_of(count: int) -> Rule:
    """One failure among so many orders."""

    def rule(seen: list[Run]) -> bool | None:
        if any(broke for broke, _ in seen):
            return True
        return False if len(seen) == count else None

    return rule


def late(seen: list[Run]) -> bool | None:
    """Two orders that agree, or a failure after more than twenty steps."""
    return True if any(broke and steps > 20 for broke, steps in seen) else vote(seen)


class Table:
    """What became of the runs of a case; below the lowest rate all hold, above the highest none."""

    def __init__(self, runs: dict[str, list]) -> None:
        keys = [tuple(map(int, key.split(","))) for key in runs]
        self._runs = {
            key: (bool(v[0] or v[1]), v[2]) for key, v in zip(keys, runs.values(), strict=True)
        }
        self.places = sorted({place for place, _ in keys})
        everywhere = [{o for p, o in keys if p == place} for place in self.places]
        self.orders = sorted(set.intersection(*everywhere))

    def at(self, rate: float, order: int) -> Run:
        """The run at the nearest rate."""
        place = round(math.log(rate, APART))
        if place < self.places[0]:
            return False, STEPS
        return (True, 5) if place > self.places[-1] else self._runs[place, order]

    def truth(self, orders: list[int]) -> float:
        """The median of the first failures."""
        above = self.places[-1] + 1
        first = [min([p for p in self.places if self._runs[p, o][0]] + [above]) for o in orders]
        return APART ** sorted(first)[len(first) // 2]


def searched(table: Table, orders: list[int], start: float, rule: Rule) -> float:
    """The onset by a short search: enclosed, then halved, as long as the steps suffice."""
    left, verdicts = BUDGET, {}

    def fails(rate: float) -> bool:
        nonlocal left
        seen: list[Run] = []
        while left >= STEPS and rule(seen) is None:
            seen.append(table.at(rate, orders[len(seen)]))
            left -= seen[-1][1]
        held = sum(not broke for broke, _ in seen)
        settled = rule(seen)
        verdicts[rate] = len(seen) - held >= held if settled is None else settled
        return verdicts[rate]

    def ends() -> tuple[float, float]:
        high = min((rate for rate, broke in verdicts.items() if broke), default=math.inf)
        return max((rate for rate in verdicts if rate < high), default=0.0), high

    rate, went_down, went_up = start, False, False
    while left >= STEPS and not (went_down and went_up):
        if fails(rate):
            went_down, rate = True, rate / WIDENING
        else:
            went_up, rate = True, rate * WIDENING
    low, high = ends()
    while left >= STEPS and 0 < low < high / 1.05 < math.inf:
        fails(math.sqrt(low * high))
        low, high = ends()
    return high if low == 0 else low if math.isinf(high) else math.sqrt(low * high)


def scored(table: Table, rule: Rule | None) -> str:
    """Draws off by more than two and the median factor; without a rule a full search."""
    draw, factors = random.Random(0), []
    for _ in range(DRAWS):
        orders = draw.sample(table.orders, 6)
        truth = table.truth(orders[:3])
        start = truth * math.exp(draw.uniform(math.log(0.4), math.log(4)))
        found = searched(table, orders[3:], start, rule) if rule else table.truth(orders[3:])
        factors.append(found / truth)
    far = sum(max(factor, 1 / factor) > 2.001 for factor in factors) / DRAWS
    high = sum(factor > 2.001 for factor in factors) / DRAWS
    median = statistics.median(max(factor, 1 / factor) for factor in factors)
    return f"{far:4.0%} off by more than 2, {high:4.0%} too high by more; median {median:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=Path, help="of learning_rate_accuracy.py --resume")
    parser.add_argument("tables", type=Path, help="finished runs, kept here")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=[])
    parser.add_argument("--orders", type=int, default=6)
    parser.add_argument("--places", type=int, default=6, help="rates on either side of the onset")
    parser.add_argument("--seconds", type=float, default=200.0)
    options = parser.parse_args()
    end = time.perf_counter() + options.seconds
    tables = json.loads(options.tables.read_text()) if options.tables.exists() else {}
    for name in options.cases:
        onsets = sorted(json.loads(options.rows.read_text())[name]["onsets"])
        center = onsets[len(onsets) // 2]
        tabulated(name, center, tables.setdefault(name, {}), options.orders, options.places, end)
        options.tables.write_text(json.dumps(tables) + "\n")
    rules = {"two of three": vote, "one of two": one_of(2), "one of three": one_of(3)}
    for name, runs in tables.items():
        table = Table(runs)
        if len(table.orders) < 6:
            continue
        for rule, call in {**rules, "two, or one late": late, "a full search": None}.items():
            print(f"{name:28} {rule:18} {scored(table, call)}")


if __name__ == "__main__":
    main()
