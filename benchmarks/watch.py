"""How fast `normscope watch` opens and follows a large store, and what memory it takes.

    python benchmarks/watch.py [--cells 100000] [--minutes 3] [--store FILE] [--json FILE]

The server is a process of its own, started as a user starts it; this process writes the store and
is the only client. Opening: from the start of the process until a message with every cell of the
diagram has come. Update: from the commit of a cell until the message with its state has come. The
soak finishes four cells in a second; memory is the resident set of the server (Linux). Times are by
the clock, and for the server also by its processor time, since on a busy machine the clock measures
the others.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import xarray as xr

from normscope.results import Store

FINISHED_SHARE = 0.05
UPDATES = 20
PAUSE = 0.25  # seconds between two cells of the soak


def cell(number: int) -> xr.Dataset:
    loss = 2 * np.exp(-np.arange(12) * (number % 97) / 97)
    return xr.Dataset(
        {"loss": ("step", loss), "test_loss": loss[-1], "outcome": "finished"},
        {"step": np.arange(12) * 10},
    )


def fill(path: Path, cells: int) -> None:
    """Write a diagram of so many cells, a twentieth of them finished."""
    side = int(cells**0.5)
    grid = itertools.product(np.geomspace(0.1, 3, side), np.geomspace(1e-3, 3, side))
    fixed = {"model": "fully_connected", "data": "digits", "norm": "batch", "width": 64}
    with Store(path) as store:
        with store.transaction():
            keys = [
                store.add("phase_diagram", {**fixed, "gamma": gamma, "learning_rate": rate}, 0)
                for gamma, rate in grid
            ]
        for start in range(0, int(FINISHED_SHARE * len(keys)), 500):
            with store.transaction():
                for number, key in enumerate(keys[start : start + 500]):
                    store.start(key)
                    store.finish(key, cell(number))


class Server:
    """A running `normscope watch` and the client of its events."""

    def __init__(self, path: Path) -> None:
        self.begun = time.perf_counter()
        command = [sys.executable, "-m", "normscope", "watch", str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = urlsplit(self.process.stdout.readline().split()[1])
        assert self.url.hostname is not None
        self.connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=300)
        self.connection.request("GET", f"{self.url.path}events")
        self.events = self.connection.getresponse()

    def messages(self) -> Iterator[dict[str, Any]]:
        while True:
            line = self.events.fp.readline()
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])

    @property
    def memory(self) -> float:
        """Resident megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1000

    @property
    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.wait()


def counts_of(message: dict[str, Any]) -> dict[str, int]:
    found = [part["counts"] for part in message["parts"] if part["kind"] == "experiment"]
    return found[0] if found else {}


def wait_for_all(
    server: Server, messages: Iterator[dict[str, Any]], cells: int
) -> dict[str, float]:
    """Wait for every cell's state, then for every loss."""
    found: dict[str, float] = {}
    losses: dict[int, float] = {}
    finished = -1
    for message in messages:
        now = time.perf_counter() - server.begun
        found.setdefault("first message, s", now)
        counts = counts_of(message)
        if "all states, s" not in found and sum(counts.values()) == cells:
            found |= {"all states, s": now, "all states, processor s": server.processor_seconds}
        finished = counts.get("finished", finished)
        for part in message["parts"]:
            each = part.get("cells")
            if each:
                numbers = range(cells) if each["cells"] is None else each["cells"]
                values = zip(numbers, each["losses"], strict=True)
                losses.update((number, loss) for number, loss in values if loss is not None)
        if "all states, s" in found and len(losses) >= finished:
            break
    found |= {"all losses, s": now, "all losses, processor s": server.processor_seconds}
    return {**found, "memory then, MB": server.memory}


def measure_updates(
    server: Server, messages: Iterator[dict[str, Any]], store: Store, keys: Iterator[str]
) -> dict[str, float]:
    """Seconds from the commit of a cell until a client has it."""
    taken, begun = [], server.processor_seconds
    done = len(store.select("phase_diagram", state="finished"))
    for number in range(UPDATES):
        key = next(keys)
        store.start(key)
        store.finish(key, cell(number))
        done, start = done + 1, time.perf_counter()
        next(m for m in messages if counts_of(m).get("finished", 0) >= done)
        taken.append(time.perf_counter() - start)
    used = (server.processor_seconds - begun) / UPDATES
    return {
        "update, median s": statistics.median(taken),
        "update, longest s": max(taken),
        "processor s for each update": used,
    }


def soak(
    server: Server,
    messages: Iterator[dict[str, Any]],
    store: Store,
    keys: Iterator[str],
    minutes: float,
) -> dict[str, float]:
    """Memory while cells end one after the other, and its slope over the second half."""
    begun, samples, written = time.perf_counter(), [], 0
    while (now := time.perf_counter() - begun) < 60 * minutes:
        key = next(keys)
        store.start(key)
        store.finish(key, cell(written))
        written += 1
        next(messages)
        if int(now / 60) > int(samples[-1][0] / 60 if samples else -1):
            print(f"minute {now / 60:3.0f}: {server.memory:.1f} MB", flush=True)
        samples.append((now, server.memory))
        time.sleep(PAUSE)
    times, memory = np.array(samples).T
    quarters = np.array_split(memory, 4)
    late = times > times[-1] / 2
    slope = np.polyfit(times[late], memory[late], 1)[0] * 3600
    return {
        "soak, minutes": minutes,
        "cells ended meanwhile": float(written),
        **{
            f"memory, median of quarter {n}, MB": float(np.median(q))
            for n, q in enumerate(quarters, 1)
        },
        "memory, largest, MB": float(memory.max()),
        "slope over the second half, MB per hour": float(slope),
    }


def measure(path: Path, minutes: float) -> dict[str, float]:
    with Store(path) as store:
        records = store.select("phase_diagram")
        keys = iter([each.key for each in records if each.state == "pending"])
        server = Server(path)
        try:
            messages = server.messages()
            found = {"cells": float(len(records))}
            found |= wait_for_all(server, messages, len(records))
            found |= measure_updates(server, messages, store, keys)
            return found | soak(server, messages, store, keys, minutes)
        finally:
            server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=3.0, help="length of the soak")
    parser.add_argument("--store", type=Path, metavar="FILE", help="kept, and used if it exists")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.store or Path(folder) / "large.sqlite"
        if not path.exists():
            fill(path, options.cells)
        load = os.getloadavg()[0]
        found = measure(path, options.minutes)
    print(f"load before: {load:.1f}, processors: {os.cpu_count()}")
    for name, value in found.items():
        print(f"{name:42} {value:10.3g}" if value < 1000 else f"{name:42} {value:10.0f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
