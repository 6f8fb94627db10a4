"""Predicted over true learning-rate limits, case by case, the bad ones first.

    python benchmarks/learning_rate_accuracy.py [--cases NAME ...] [--resume FILE] [--json FILE]

The truth is found by a slow search of its own (``learning_rate_truth.py``): the smallest learning
rate, to 5 %, the median over three orders of the data, at which within 100 steps at batch size 128
the loss becomes non-finite or exceeds 3 times (squared error) or 1.5 times (cross-entropy) its
first value. Every other number is divided by it: above 1 is too large. ``--resume`` keeps finished
cases in a file and goes on from there; ``--renew`` keeps only the truth of that file. What the
groups of cases ("dev", "judged", "new", "last") mean is said in ``learning_rate_cases.py``.
"finder" is torch-lr-finder's range test on a DataLoader; without that package
(``pip install -e .[bench]``) its columns are empty.

Data: MNIST and CIFAR-10 where NORMSCOPE_DATA names them, the embedded digits otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import learning_rate_finder
import torch
from learning_rate_cases import BATCH_SIZE, CASES, FRESH_CASES, PLAIN_CASES, Case
from learning_rate_truth import one_batch, true_onset
from rich.console import Console
from rich.table import Table

from normscope.curvature import top_eigenvalue
from normscope.learning_rate.bound import measure_curvature
from normscope.learning_rate.prediction import mean_field_bound, predict_limit
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.update_rule import UpdateRule
from normscope.learning_rate.verification import verify_limit
from normscope.problem.problem import Problem
from normscope.training import sgd

ALL = CASES | PLAIN_CASES | FRESH_CASES
CLOSURES = ("train", "frozen", "printed")
METHODS = (
    "curvature_bound",
    "bound",
    "predicted",
    "verified",
    *(f"theory {name}" for name in CLOSURES),
)
PEERS = ("finder suggestion", "finder end")
Row = dict[str, Any]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = call()
    return result, time.perf_counter() - begin


def measured(case: Case, onsets: list[float] | None) -> Row:
    """Every method's rate and seconds on one case."""
    model = case.model()
    if onsets is None:
        onsets, truth_seconds = timed(lambda: true_onset(case, model))
    else:
        truth_seconds = math.nan
    problem = Problem(model, case.loss, case.samples())
    rule = UpdateRule("SGD", momentum=case.momentum)
    bench = TrainingSetup(problem, sgd(1.0, case.momentum), BATCH_SIZE, 0)
    batches = bench.batches(4)
    rates: Row = {}
    seconds: Row = {"truth": truth_seconds}
    curvature, seconds["curvature_bound"] = timed(
        lambda: measure_curvature(problem, batches[:3], rule)
    )
    rates["bound"] = curvature.bound(rule)
    start_only = rule.largest_stable_rate(max(curvature.values))

    def bound() -> float:  # measured again: it is part of what the prediction takes
        return measure_curvature(problem, batches[:3], rule).bound(rule)

    prediction, seconds["predicted"] = timed(lambda: predict_limit(problem, batches, rule, bound))
    rates["predicted"] = prediction.rate
    found, seconds["verified"] = timed(lambda: verify_limit(bench, prediction.rate))
    rates["verified"] = found.onset
    rates["curvature_bound"] = found.lowered_bound(rates["bound"])
    reasons = {}
    for closure in CLOSURES:
        theory = mean_field_bound(problem, one_batch(case), rule, closure)
        rates[f"theory {closure}"] = theory.rate
        reasons[closure] = theory.reason
    seconds["range test"] = math.nan
    if learning_rate_finder.is_present():
        rates |= zip(PEERS, learning_rate_finder.range_test(case, model), strict=True)
        seconds["range test"] = learning_rate_finder.seconds_of_range_test(case, model)
    return {
        "onsets": onsets,
        "rates": rates,
        "start_only": start_only,
        "standing": prediction.standing,
        "reason": prediction.reason,
        "begins_flat": curvature.starts_on_plateau,
        "verified_ends": [found.low, found.high],
        "spread": found.spread,
        "verification_steps": found.steps,
        "products": top_eigenvalue(model, case.loss, batches[0], kind="ggn").matvecs,
        "died": found.collapsed_first,
        "theory": reasons,
        "seconds": seconds,
    }


def ratio(row: Row, method: str) -> float | None:
    rate = row["rates"].get(method)
    return None if rate is None else rate / sorted(row["onsets"])[len(row["onsets"]) // 2]


def factor(row: Row, method: str) -> float:
    """How far off, in either direction; one if it gives no answer."""
    value = ratio(row, method)
    return 1.0 if value is None else max(value, 1 / value)


def badness(row: Row) -> float:
    """The worst of three: prediction, verified limit, and a curvature bound that is too large."""
    bound = ratio(row, "curvature_bound") or 0.0
    return max(factor(row, "predicted") / 4, factor(row, "verified") / 2, bound)


def show(rows: dict[str, Row]) -> None:
    table = Table(title="predicted / true onset, bad ones first; seconds in the last columns")
    timings = ("curvature_bound", "predicted", "verified", "range test")
    table.add_column("case")
    for name in ("onset", *METHODS, *PEERS, *(f"{name} s" for name in timings)):
        table.add_column(name, justify="right")
    for name, row in sorted(rows.items(), key=lambda item: -badness(item[1])):
        ratios = (ratio(row, method) for method in (*METHODS, *PEERS))
        label = f"{name} ({ALL[name].group})"
        onset = sorted(row["onsets"])[len(row["onsets"]) // 2]
        seconds = (f"{row['seconds'][each]:.2f}" for each in timings)
        cells = ("-" if value is None else f"{value:.3g}" for value in ratios)
        table.add_row(label, f"{onset:.3g}", *cells, *seconds)
    Console(width=220).print(table)


def summary(rows: dict[str, Row]) -> str:
    lines = []
    groups = {
        "all": list(rows),
        "earlier": [name for name in rows if name in CASES and CASES[name].group != "last"],
    }
    for name in rows:
        groups.setdefault(ALL[name].group, []).append(name)
    for group, names in groups.items():
        for method in (*METHODS, *PEERS):
            chosen = [rows[name] for name in names if ratio(rows[name], method) is not None]
            if not chosen:
                continue
            factors = sorted(factor(row, method) for row in chosen)
            above = sum((ratio(row, method) or 0) > 1 for row in chosen)
            lines.append(
                f"{group:7} {method:18} {len(chosen):3} cases, factor "
                f"{statistics.median(factors):6.2f} median, {factors[-1]:8.2f} worst, "
                f"above the limit in {above}"
            )
    return "\n".join([*lines, curvature_of_theory(rows), costs(rows)])


def curvature_of_theory(rows: dict[str, Row]) -> str:
    """How far the theory's largest eigenvalue is from the measured one, at the start."""
    off = sorted(
        max(theory / row["start_only"], row["start_only"] / theory)
        for row in rows.values()
        if (theory := row["rates"]["theory train"]) is not None
    )
    return (
        f"theory train against the measured lambda_max: {len(off)} cases, factor "
        f"{statistics.median(off):.2f} median, {off[-1]:.2f} worst"
    )


def costs(rows: dict[str, Row]) -> str:
    """The time of the prediction, where lambda_max takes under ten products and elsewhere."""
    shares: dict[bool, list[float]] = {True: [], False: []}
    for row in rows.values():
        seconds = row["seconds"]
        shares[row["products"] < 10].append(seconds["predicted"] / seconds["range test"])
    told = [
        f"{statistics.median(each):.2f} of a range test in the median, {max(each):.2f} at most, "
        f"where lambda_max takes {'under' if few else 'at least'} ten products ({len(each)} cases)"
        for few, each in shares.items()
        if each
    ]
    return "\n".join(f"the prediction takes {line}" for line in told)


def saved(path: Path, rows: dict[str, Row]) -> None:
    """Write all rows at once: a run that is cut off leaves the old file or the new one."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(rows, indent=1) + "\n")
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=ALL, metavar="NAME", help="only these")
    parser.add_argument("--plain", action="store_true", help="networks without normalization")
    parser.add_argument("--fresh", action="store_true", help="those that nothing was tuned on")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="finished cases, kept here")
    parser.add_argument("--renew", action="store_true", help="keep only the truth of FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: dict[str, Row] = {}
    if options.resume and options.resume.exists():
        rows = json.loads(options.resume.read_text())
    chosen = FRESH_CASES if options.fresh else PLAIN_CASES if options.plain else CASES
    names = options.cases or list(chosen)
    for name in names:
        kept = rows.get(name, {})
        if "rates" in kept and not options.renew:
            continue
        rows[name] = measured(ALL[name], kept.get("onsets"))
        print(name, {k: v and round(v, 4) for k, v in rows[name]["rates"].items()}, flush=True)
        if options.resume:
            saved(options.resume, rows)
    finished = {name: rows[name] for name in names if "rates" in rows.get(name, {})}
    show(finished)
    print(summary(finished))
    if options.json:
        saved(options.json, finished)


if __name__ == "__main__":
    main()
