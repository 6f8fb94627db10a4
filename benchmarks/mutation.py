"""Mutation sample: the share of small faults in the source that the tests detect.

    python benchmarks/mutation.py [--packages P ...] [--mutants N] [--seed S] [--json FILE]

Each mutant changes one expression of a covered line: a comparison, an arithmetic operator, a
number, a boolean, ``and``/``or``, a condition, or a return value. The tests that run that line are
chosen by coverage (at most ``--tests`` of them, spread over test functions, the fastest first) and
run until one fails. A mutant is killed if a test fails or takes longer than the time limit.
Needs pytest-cov: ``pip install -c constraints.txt pytest-cov``. The files are restored on exit.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "normscope"
SECONDS = 120  # for the tests of one mutant
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.MatMult: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One changed expression: where it is, and its text before and after."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str
    outcome: str = ""


def replaced(node: ast.AST) -> ast.AST | None:
    """Return a changed copy of an expression; None if this kind is not mutated."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            return ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators)
        case ast.BinOp() if type(node.op) in OPERATORS:
            return ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            return ast.BoolOp(other, node.values)
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            return node.operand
        case ast.Constant(value=bool()):
            return ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            return ast.Constant(node.value + 1)
        case ast.IfExp():
            return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    return None


def mutants_of(path: Path) -> list[Mutant]:
    """Return every mutant of one file; annotations, docstrings and ``__all__`` are left out."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if (part := getattr(node, field, None)) is not None:
                skipped |= set(ast.walk(part))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= set(ast.walk(node))
    found = []
    for node in ast.walk(tree):
        if node in skipped or (new := replaced(node)) is None:
            continue
        if node.lineno != node.end_lineno:
            continue
        line = text.splitlines()[node.lineno - 1].encode()
        before = line[node.col_offset : node.end_col_offset].decode()
        after = f"({ast.unparse(ast.fix_missing_locations(new))})"
        place = (str(path.relative_to(ROOT)), node.lineno, node.col_offset, node.end_col_offset)
        found.append(Mutant(*place, before, after))
    return found


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def record_coverage(tests: list[str], data: Path) -> dict[str, float]:
    """Run the tests once with one coverage context each; return their durations."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=0"]
    command += ["--durations-min=0", "-vv", "--cov=normscope", "--cov-context=test"]
    command += [
        "--cov-report=",
        "-m",
        "not real_data and not slow and not extras and not zoo",
        *tests,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**environment(), "COVERAGE_FILE": str(data)},
        capture_output=True,
        text=True,
    )
    durations: dict[str, float] = collections.defaultdict(float)
    for seconds, name in re.findall(r"^(\d+\.\d+)s (?:call|setup) +(\S.*)$", done.stdout, re.M):
        durations[name] += float(seconds)
    if not durations:
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    return durations


def covering_tests(data: Path) -> dict[tuple[str, int], set[str]]:
    """Return the tests that run each line."""
    import coverage

    found: dict[tuple[str, int], set[str]] = collections.defaultdict(set)
    recorded = coverage.CoverageData(str(data))
    recorded.read()
    for file in recorded.measured_files():
        relative = str(Path(file).relative_to(ROOT))
        for line, contexts in recorded.contexts_by_lineno(file).items():
            names = {name.rpartition("|")[0] for name in contexts if name}
            found[relative, line] |= names
    return found


def chosen_tests(names: set[str], durations: dict[str, float], limit: int) -> list[str]:
    """Return the fastest case of each test function first, then further cases."""
    by_function: dict[str, list[str]] = collections.defaultdict(list)
    for name in sorted(names, key=lambda each: durations.get(each, 0.0)):
        by_function[name.partition("[")[0]].append(name)
    ranked = sorted(
        (place, durations.get(name, 0.0), name)
        for cases in by_function.values()
        for place, name in enumerate(cases)
    )
    return [name for _, _, name in ranked[:limit]]


def judged(mutant: Mutant, tests: list[str]) -> str:
    """Apply a mutant, run the tests, restore the file; return what happened."""
    path = ROOT / mutant.file
    text = path.read_bytes()
    lines = text.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: mutant.start] + mutant.after.encode() + line[mutant.end :]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        path.write_bytes(b"".join(lines))
        done = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return {0: "survived", 5: "survived"}.get(done.wait(SECONDS), "killed")
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)
            done.wait()
            return "killed"
    finally:
        path.write_bytes(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--packages", nargs="+", default=["problem", "curvature", "learning_rate", "results"]
    )
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--tests", type=int, default=40, help="per mutant, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=ROOT / ".coverage_mutation")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    packages = [name for name in options.packages if (SOURCE / name).exists()]
    unit = [f"tests/unit/{name}" for name in packages]
    properties = [f"tests/properties/test_{name}.py" for name in packages]
    tests = [name for name in (*unit, *properties) if (ROOT / name).exists()]
    kept = options.data.with_suffix(".durations.json")
    if not options.data.exists() or not kept.exists():
        kept.write_text(json.dumps(record_coverage(tests, options.data)))
    durations, covering = json.loads(kept.read_text()), covering_tests(options.data)
    files = [path for name in packages for path in sorted((SOURCE / name).rglob("*.py"))]
    everything = [mutant for path in files for mutant in mutants_of(path)]
    covered = [mutant for mutant in everything if covering.get((mutant.file, mutant.line))]
    print(f"{len(everything)} mutants, {len(covered)} on covered lines", flush=True)
    drawn = random.Random(options.seed).sample(covered, min(options.mutants, len(covered)))
    results = []
    for number, mutant in enumerate(drawn, 1):
        names = chosen_tests(covering[mutant.file, mutant.line], durations, options.tests)
        results.append(Mutant(**{**asdict(mutant), "outcome": judged(mutant, names)}))
        killed = sum(each.outcome == "killed" for each in results)
        print(f"{number}/{len(drawn)}, {killed} killed: {results[-1]}", flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(each) for each in results], indent=1))
    for name in packages:
        own = [each for each in results if each.file.split("/")[2] == name]
        killed = sum(each.outcome == "killed" for each in own)
        print(f"{name}: {killed} of {len(own)} killed")
    killed = sum(each.outcome == "killed" for each in results)
    print(f"all: {killed} of {len(results)} killed ({killed / len(results):.0%})")


if __name__ == "__main__":
    main()
