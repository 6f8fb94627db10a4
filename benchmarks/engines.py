"""What each engine of a sweep costs: efficiency from one to two workers, and overhead of a cell.

    python benchmarks/engines.py [--engine local ray dask] [--cells 10000] [--json FILE]

Efficiency is the time with one worker over twice that with two, one thread each, on the same
stable trainings of width 1000; one and two take turns, and the shortest time of each counts.
Overhead is the time of a sweep over cells that compute nothing, for each cell; every cell is
durable in the store. The start of the engine and of the workers, who import torch, is told by
itself and left out of the trainings' time: Ray starts its workers with every sweep.

Ray and Dask run on this machine: pip install 'normscope[ray,dask]'.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

# workers of Ray and Dask find the functions of this folder by it
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)

import sweep_cells
import torch
from rich.console import Console
from rich.table import Table
from sweep import ours, timed

from normscope.sweeps import Cell, Unit
from normscope.sweeps.engines import open_engine
from normscope.sweeps.settings import complete_settings
from normscope.sweeps.work import grid_cells

WORKERS = (1, 2)


def trainings() -> list[Unit]:
    """Sixteen trainings that do not diverge."""
    axes = {"gamma": (0.5, 1.0, 1.5, 2.0), "learning_rate": (1e-4, 2e-4, 3e-4, 4e-4)}
    settings = {"model": "fully_connected", "data": "noise_digits", "epochs": 1.0}
    return [Unit((cell,)) for cell in grid_cells(axes, complete_settings(settings), [0])]


def empties(count: int) -> list[Unit]:
    return [Unit((Cell({"number": number}, 0),)) for number in range(count)]


def measure(name: str, workers: int, cells: int) -> dict[str, float]:
    """Seconds of the start, of the trainings, and of a cell that computes nothing."""
    begun = time.perf_counter()
    with open_engine(name, workers, 1) as engine:
        ours(empties(2 * workers), sweep_cells.do_nothing, engine, 1)
        start = time.perf_counter() - begun
        units = trainings()
        ours(units[: 2 * workers], sweep_cells.train_separately, engine, 1)
        again = timed(lambda: ours(empties(2 * workers), sweep_cells.do_nothing, engine, 1))
        seconds = timed(lambda: ours(units, sweep_cells.train_separately, engine, 1)) - again
        empty = timed(lambda: ours(empties(cells), sweep_cells.do_nothing, engine, 1)) / cells
    return {"start": start, "trainings": seconds, "empty": empty}


def compare(name: str, cells: int, rounds: int) -> dict[str, Any]:
    """One engine with one and with two workers, in turns."""
    shortest: dict[int, dict[str, float]] = {}
    for turn in range(rounds):
        for workers in WORKERS:
            print(f"{name}, {workers} workers, turn {turn + 1} ...", file=sys.stderr, flush=True)
            found = measure(name, workers, cells)
            before = shortest.get(workers, dict.fromkeys(found, math.inf))
            shortest[workers] = {key: min(found[key], before[key]) for key in found}
    one, two = (shortest[workers] for workers in WORKERS)
    return {
        "engine": name,
        "one": one,
        "two": two,
        "efficiency": one["trainings"] / (2 * two["trainings"]),
    }


def show(results: list[dict[str, Any]]) -> None:
    table = Table(title="Sixteen trainings of width 1000; one thread for each worker")
    for column in ("engine", "1 worker", "2 workers", "efficiency", "start of 2", "empty cell (2)"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for each in results:
        one, two = each["one"], each["two"]
        table.add_row(
            each["engine"],
            f"{one['trainings']:.1f} s",
            f"{two['trainings']:.1f} s",
            f"{each['efficiency']:.2f}",
            f"{two['start']:.1f} s",
            f"{1e3 * two['empty']:.2f} ms",
        )
    Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", nargs="+", default=["local", "ray", "dask"])
    parser.add_argument("--cells", type=int, default=10_000, help="that compute nothing")
    parser.add_argument("--rounds", type=int, default=2, help="turns of one and two workers")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = [compare(name, arguments.cells, arguments.rounds) for name in arguments.engine]
    show(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
