"""Cells per hour of a sweep against the naive loop, on a grid half of whose cells diverge.

    python benchmarks/sweep.py [--quick] [--json FILE] [--overhead] [--cells N]

The naive loop is what one writes first: for every cell a new network of torch's own layers, a
DataLoader over a TensorDataset, torch.optim.SGD as it comes, zero_grad, forward, backward, step,
loss.item(), no look at the loss, then the test set. Both train the same grid (same sizes, rates,
batches per cell, momentum 0.9, squared error) and write their results down: the naive loop in a
list, the sweep in its store, each cell or group durable on the disk.

The rows add one thing after the other, so that each has its share: the loop stops when the loss
explodes; the data path and the update of normscope's loop; two processes with one thread each in
place of one with two; ensembles. Ways take turns in one run and the shortest time counts. The pool
of workers is started before the clock: its start is printed by itself.

On a machine that others use too, set OMP_WAIT_POLICY=PASSIVE: threads that wait by spinning take
the processor from those they wait for, and a step on two threads may last a second.

--overhead measures what a cell costs that computes nothing, and the store's throughput.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import sweep_cells
import torch
import xarray as xr
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from normscope.results import Store
from normscope.sweeps import Cell, Unit, Work, sweep
from normscope.sweeps.cell import GROUP, group_key
from normscope.sweeps.engines import Engine, open_engine
from normscope.sweeps.settings import complete_settings, load_split
from normscope.sweeps.work import grid_cells, group_cells

STABLE = (1e-4, 3e-4)
EXPLOSIVE = (1e2, 3e2)
GAMMAS = (0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Case:
    """A network, its data and what is asked for."""

    name: str
    model: str
    data: str
    options: dict[str, Any]
    epochs: float
    goal: float


CASES = [
    Case("fully_connected, width 100", "fully_connected", "noise_digits", {"width": 100}, 2.0, 6.0),
    Case("fully_connected", "fully_connected", "noise_digits", {}, 1.0, 2.0),
    Case("conv_net", "conv_net", "noise_pictures", {}, 1.0, 2.0),
]


def plain_network(case: Case, gamma: float) -> nn.Module:
    """The same architecture of torch's own layers, initial weights as torch draws them."""
    layers: list[nn.Module] = []
    if case.model == "fully_connected":
        width = case.options.get("width", 1000)
        layers.append(nn.Flatten())
        for inputs in (784, width, width):
            layers += [nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU()]
        layers.append(nn.Linear(width, 10))
    else:
        for inputs, maps in ((3, 30), (30, 60), (60, 90)):
            layers += [nn.Conv2d(inputs, maps, 3, stride=2), nn.BatchNorm2d(maps), nn.ReLU()]
        layers += [nn.Flatten(), nn.Linear(810, 10)]
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.constant_(layer.weight, gamma)
    return nn.Sequential(*layers)


def naive_cell(case: Case, cell: Cell, steps: int, stop_early: bool) -> float:
    """The textbook's way to one cell; its test loss."""
    data = load_split(case.data, "", None, None)
    torch.manual_seed(cell.seed)
    network = plain_network(case, cell.parameters["gamma"])
    rate = cell.parameters["learning_rate"]
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9)
    loader = DataLoader(TensorDataset(*data.train), batch_size=128, shuffle=True, drop_last=True)
    taken, first = 0, math.nan
    while taken < steps:
        for inputs, labels in loader:
            optimizer.zero_grad()
            targets = functional.one_hot(labels, 10).float()
            loss = (network(inputs) - targets).square().sum() / (2 * len(inputs))
            loss.backward()
            optimizer.step()
            value = loss.item()
            taken += 1
            first = value if taken == 1 else first
            if stop_early and not value <= 1e3 * first:
                return math.nan
            if taken == steps:
                break
    network.eval()
    with torch.no_grad():
        targets = functional.one_hot(data.test.y, 10).float()
        return float((network(data.test.x) - targets).square().sum() / (2 * len(targets)))


def timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def ours(units: list[Unit], function: Any, engine: Engine, threads: int) -> None:
    """The sweep, with its store on the disk."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "s.sqlite") as store:
        report = sweep(Work("bench", function), units, store, engine=engine, threads=threads)
    assert not report.failures, report.failures[0].error


def ways(case: Case, cells: list[Cell], pool: Engine) -> dict[str, Callable[[], object]]:
    alone = [Unit((cell,)) for cell in cells]
    groups = list(group_cells(cells, GROUP, group_key))
    steps = round(case.epochs * (sweep_cells.SAMPLES // 128))
    here, separately = Engine(1), sweep_cells.train_separately
    found: dict[str, Callable[[], object]] = {
        "naive": lambda: [naive_cell(case, cell, steps, False) for cell in cells],
        "early stop": lambda: [naive_cell(case, cell, steps, True) for cell in cells],
        "data path, fused update": lambda: ours(alone, separately, here, 2),
        "two processes": lambda: ours(alone, separately, pool, 1),
    }
    if len(groups) < len(cells):
        found["ensembles, one process"] = lambda: ours(groups, sweep_cells.train_grouped, here, 2)
        found["ensembles, two processes"] = lambda: ours(groups, sweep_cells.train_grouped, pool, 1)
    return found


def measure(case: Case, rounds: int, pool: Engine) -> dict[str, Any]:
    print(f"{case.name} ...", file=sys.stderr, flush=True)
    axes = {"gamma": GAMMAS, "learning_rate": STABLE + EXPLOSIVE}
    settings = {"model": case.model, "data": case.data, "epochs": case.epochs, **case.options}
    cells = grid_cells(axes, complete_settings(settings), [0])
    contenders = ways(case, cells, pool)
    ours(list(group_cells(cells[:GROUP], 1, group_key)), sweep_cells.train_separately, pool, 1)
    shortest = dict.fromkeys(contenders, math.inf)
    for _ in range(rounds):
        for name, call in contenders.items():
            shortest[name] = min(shortest[name], timed(call))
    naive = shortest["naive"]
    best = min((name for name in shortest if name != "naive"), key=shortest.__getitem__)
    rows = {
        name: {"cells_per_hour": 3600 * len(cells) / seconds, "ratio": naive / seconds}
        for name, seconds in shortest.items()
    }
    ratio = naive / shortest[best]
    return {
        "net": case.name,
        "cells": len(cells),
        "ways": rows,
        "best": best,
        "ratio": ratio,
        "goal": case.goal,
        "met": ratio >= case.goal,
    }


def overhead(cells: int, pool: Engine) -> dict[str, float]:
    """Seconds for each cell that computes nothing: in this process, and through the pool."""
    units = [Unit((Cell({"number": number}, 0),)) for number in range(cells)]
    found = {}
    for name, engine in {"one process": Engine(1), "two processes": pool}.items():
        found[name] = timed(lambda: ours(units, sweep_cells.do_nothing, engine, 1)) / cells  # noqa: B023
    return found


def store_throughput(cells: int) -> dict[str, float]:
    """Cells per second that the store takes, each by itself and 100 in one transaction."""
    dataset = xr.Dataset({"loss": ("step", np.random.default_rng(0).normal(size=100)), "test": 1.0})
    found = {}
    for size in (1, 100):
        with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "s.sqlite") as store:
            with store.transaction():
                keys = [store.add("bench", {"n": n}, 0) for n in range(cells)]
                for key in keys:
                    store.start(key)
            begun = time.perf_counter()
            for first in range(0, cells, size):
                with store.transaction():
                    for key in keys[first : first + size]:
                        store.finish(key, dataset)
            found[f"{size} in a transaction"] = cells / (time.perf_counter() - begun)
    return found


def print_results(results: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("net", "way", "cells per hour", "times naive")
    for each in results:
        for name, row in each["ways"].items():
            values = (f"{row['cells_per_hour']:.0f}", f"{row['ratio']:.2f}")
            table.add_row(each["net"] if name == "naive" else "", name, *values)
        verdict = "met" if each["met"] else "missed"
        table.add_row("", f"goal {each['goal']:g}: {verdict} by {each['best']}", "", "")
    Console(width=100).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of shorter trainings")
    parser.add_argument("--json", type=Path, help="write the numbers there")
    parser.add_argument("--overhead", action="store_true", help="cells that compute nothing")
    parser.add_argument("--cells", type=int, default=10_000, help="of --overhead")
    parser.add_argument("--only", help="a part of a net's name")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    numbers: dict[str, Any] = {"machine": platform.processor() or platform.machine()}
    begun = time.perf_counter()
    with open_engine("local", 2, 1) as pool:
        ours([Unit((Cell({"n": n}, 0),)) for n in range(2)], sweep_cells.do_nothing, pool, 1)
        numbers["pool_start_seconds"] = time.perf_counter() - begun
        print(f"start of two workers: {numbers['pool_start_seconds']:.1f} s")
        if arguments.overhead:
            numbers["overhead"] = overhead(arguments.cells, pool)
            numbers["store"] = store_throughput(min(2000, arguments.cells))
            print(json.dumps({k: numbers[k] for k in ("overhead", "store")}, indent=2))
        else:
            rounds = 1 if arguments.quick else 3
            chosen = [case for case in CASES if (arguments.only or "") in case.name]
            if arguments.quick:
                chosen = [replace(case, epochs=case.epochs / 2) for case in chosen]
            numbers["results"] = [measure(case, rounds, pool) for case in chosen]
            print_results(numbers["results"])
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    return 0 if all(each["met"] for each in numbers.get("results", [])) else 1


if __name__ == "__main__":
    sys.exit(main())
