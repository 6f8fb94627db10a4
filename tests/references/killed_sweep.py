"""A sweep whose parent or workers are killed at random moments, in a process of its own.

python -m tests.references.killed_sweep parent|worker FILE MOMENTS SEED WORKERS

Prints how many times it killed. The last attempt runs to the end. Run as a script so that the
processes it forks and kills are children of one that has no threads and no tests to lose.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import xarray as xr

from normscope.errors import DataError
from normscope.results import Store
from normscope.sweeps import TRAININGS, Cell, Diagram, Work, sweep

AXES = {"gamma": [0.3, 0.6, 1.0, 2.0, 3.0], "learning_rate": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0]}
SETTINGS = {"epochs": 2, "width": 24, "samples": 640, "test_samples": 100}
CELLS = 120
PAUSE = 0.4  # seconds before each unit, longer than a killer waits


def units():
    return Diagram(AXES, SETTINGS, [0, 1, 2, 3]).units


def slowly(cells: Sequence[Cell]) -> list[xr.Dataset]:
    """The same trainings with time enough to be killed in."""
    time.sleep(PAUSE)
    return TRAININGS.function(cells)


SLOW = replace(TRAININGS, function=slowly)


def run(path: str, workers: int = 1, work: Work = SLOW) -> None:
    with Store(path) as store:
        report = sweep(work, units(), store, workers=workers, max_attempts=1000)
    assert not report.failures, report.failures


def wait_for(path: str, number: int, child: int | None = None) -> None:
    """Until so many cells have ended, or the child has."""
    while ended(path) < number:
        if child is not None and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.005)


def kill_parent(path: str, moments: int, chance: random.Random, workers: int) -> int:
    """Start a sweep and kill it, again and again, each time a little further on."""
    kills = 0
    for moment in range(moments):
        child = os.fork()
        if child == 0:
            run(path, workers)
            os._exit(0)
        wait_for(path, moment * CELLS // (moments + 1), child)
        time.sleep(chance.uniform(0, 0.2))
        os.kill(child, signal.SIGKILL)
        _, ending = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(ending)
    run(path, workers)
    return kills


def children() -> list[int]:
    """Of this process: loky's workers (and its tracker, which is no worker)."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in pids if b"popen_loky" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def kill_workers(path: str, moments: int, chance: random.Random, workers: int) -> int:
    """Kill a random worker of a running sweep at random moments, while there is one."""
    kills, over = 0, threading.Event()

    def assassin() -> None:
        nonlocal kills
        while kills < moments and not over.is_set():
            wait_for(path, 1 + kills * CELLS // (moments + 1))
            time.sleep(chance.uniform(0, 0.1))
            try:
                os.kill(chance.choice(children()), signal.SIGKILL)
                kills += 1
            except (IndexError, OSError):  # between two pools there is none
                time.sleep(0.05)

    killer = threading.Thread(target=assassin)
    killer.start()
    run(path, workers)
    over.set()
    killer.join()
    return kills


def ended(path: str) -> int:
    """How many cells have a result; a file that is just being made has none."""
    try:
        with Store(path, read_only=True) as store:
            counts = store.counts()
    except DataError:
        return 0
    return sum(number for state, number in counts.items() if state.has_result)


if __name__ == "__main__":
    # by its own name and not as __main__, so that workers find what they compute
    from tests.references.killed_sweep import kill_parent, kill_workers

    whom, file, times, seed, workers = sys.argv[1:]
    kill = {"parent": kill_parent, "worker": kill_workers}[whom]
    print(kill(file, int(times), random.Random(int(seed)), int(workers)))
