"""How fast a store takes and gives records, and how large it becomes.

    python benchmarks/store.py [--records 10000] [--steps 20] [--json FILE]

One process, a file on the disk of the temporary folder. A record is a cell of a sweep: three
parameters, a seed, and a dataset of a loss curve with labelled steps and two numbers. "durable"
calls wait for the disk, as the contract has it; the grouped ones commit a hundred cells at once.
Plain commits of one row show what the disk itself allows. The ways of writing take turns and the
best rate of each counts, since the disk of a shared machine is faster at one time than at another.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr
from rich.console import Console
from rich.table import Table

from normscope.results import Store

GROUP = 100
ROUNDS = 10


def cell(steps: int, number: int) -> xr.Dataset:
    loss = np.random.default_rng(number).normal(size=steps)
    return xr.Dataset(
        {"loss": ("step", loss), "final": ((), loss[-1]), "seconds": ((), 0.5)},
        coords={"step": np.arange(steps) * 50},
    )


def settings(records: int) -> Iterator[tuple[dict[str, object], int]]:
    """A grid of two parameters and five seeds, with one parameter that is the same everywhere."""
    side = int((records / 5) ** 0.5) + 1
    gammas, rates = np.linspace(0.1, 3, side), np.geomspace(1e-3, 1, side)
    cells = itertools.product(gammas, rates, range(5))
    for gamma, rate, seed in itertools.islice(cells, records):
        yield {"gamma": gamma, "learning_rate": rate, "model": "fully_connected"}, seed


def rate_of(count: int, call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return count / (time.perf_counter() - start)


class PlainTable:
    """SQLite with the store's settings and nothing else."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("CREATE TABLE rows (content BLOB)")

    def commit(self, count: int) -> None:
        """Write rows of a kilobyte, each durable."""
        for _ in range(count):
            self.connection.execute("INSERT INTO rows VALUES (?)", (b"x" * 1000,))


def write_single(store: Store, keys: list[str], cells: list[xr.Dataset]) -> None:
    for key, dataset in zip(keys, cells, strict=True):
        store.start(key)
        store.finish(key, dataset)


def write_grouped(store: Store, keys: list[str], cells: list[xr.Dataset]) -> None:
    for start in range(0, len(keys), GROUP):
        with store.transaction():
            part = slice(start, start + GROUP)
            write_single(store, keys[part], cells[part])


def append_steps(store: Store, key: str, count: int) -> None:
    for step in range(count):
        store.append(key, xr.Dataset({"loss": ("step", [0.5])}, coords={"step": [step]}))


def measure_writing(store: Store, folder: Path, keys: list[str], steps: int) -> dict[str, float]:
    """Records or chunks per second of each way of writing; all records are finished then."""
    table = PlainTable(folder / "plain.sqlite")
    running = store.add("chunks", {}, 0)
    store.start(running)
    best: dict[str, float] = {}
    cells = [cell(steps, number) for number in range(len(keys))]
    share = len(keys) // ROUNDS
    for start in range(0, len(keys), share):
        middle, end = min(start + GROUP, start + share), start + share
        turns: dict[str, tuple[int, Callable[[], object]]] = {
            "plain commits of SQLite": (GROUP, partial(table.commit, GROUP)),
            "start and finish, each durable": (
                len(keys[start:middle]),
                partial(write_single, store, keys[start:middle], cells[start:middle]),
            ),
            f"start and finish, {GROUP} in a transaction": (
                len(keys[middle:end]),
                partial(write_grouped, store, keys[middle:end], cells[middle:end]),
            ),
            "append, each durable": (GROUP, partial(append_steps, store, running, GROUP)),
        }
        for name, (count, call) in turns.items():
            best[name] = max(best.get(name, 0), rate_of(count, call))
    table.connection.close()
    return best


def measure_reading(store: Store, records: int) -> dict[str, float]:
    some = store.select("sweep")[: min(2000, records)]
    return {
        "select all": rate_of(records, lambda: store.select("sweep")),
        "select one seed": rate_of(records // 5, lambda: store.select("sweep", seed=3)),
        "read a dataset": rate_of(len(some), lambda: [each.dataset for each in some]),
        "to_xarray": rate_of(records, lambda: store.to_xarray("sweep")),
    }


def measure(folder: Path, records: int, steps: int) -> dict[str, float]:
    """Calls per second, and the size of the file in bytes per record."""
    path = folder / "store.sqlite"
    with Store(path) as store:
        keys: list[str] = []

        def add() -> None:
            with store.transaction():
                keys.extend(store.add("sweep", *setting) for setting in settings(records))

        found = {"add, in one transaction": rate_of(records, add)}
        found |= measure_writing(store, folder, keys, steps)
        found |= measure_reading(store, records)
    found["bytes in the file for each record"] = path.stat().st_size / records
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=20, help="length of a loss curve")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.records, options.steps)
    print(f"{options.records} records, SQLite {sqlite3.sqlite_version}, {platform.machine()}")
    table = Table("call", "records per second")
    table.columns[1].justify = "right"
    for name, value in found.items():
        table.add_row(name, f"{value:,.0f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
