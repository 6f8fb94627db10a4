"""The store between real processes: read while written, written by one, killed at any moment."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xarray as xr

from normscope.errors import StateError
from normscope.results import State, Store

KILLS = 20

# What both sides know: the result of a record follows from its seed, bit for bit.
RESULT = """
import numpy as np, xarray as xr

def result(seed, steps=range(4)):
    random = np.random.default_rng(seed)
    values = random.normal(size=(1000, 8))[list(steps)]
    return xr.Dataset(
        {"loss": (("step", "layer"), values)}, coords={"step": list(steps)}, attrs={"seed": seed}
    )
"""
WRITER = (
    RESULT
    + """
import sys, time
from normscope.results import Store

with Store(sys.argv[1]) as store:
    for seed in range(int(sys.argv[2])):
        store.compute("demo", {"rate": 0.1}, seed, lambda: result(seed))
        print(seed, flush=True)
    key = store.add("chunks", {}, 0)
    store.start(key)
    for step in range(40):
        store.append(key, result(0, [step]))
    print("appended", flush=True)
    sys.stdin.read()
"""
)
# Imports once, then forks a writer for every kill: only the writer's own work is cut short.
KILLER = (
    RESULT
    + """
import itertools, os, random, signal, sys, time
from normscope.results import Store

def write(path, report):
    with Store(path) as store:
        for seed in itertools.count():
            key = store.add("demo", {"rate": 0.1}, seed)
            if store.get(key).state.has_result:
                continue
            store.start(key)
            for step in range(4):
                store.append(key, result(seed, [step]))
                os.write(report, f"chunk {seed} {step}\\n".encode())
            store.finish(key)
            os.write(report, f"finished {seed}\\n".encode())

random.seed(int(sys.argv[3]))
for attempt in range(int(sys.argv[2])):
    reading, report = os.pipe()
    child = os.fork()
    if child == 0:
        write(sys.argv[1], report)
    os.close(report)
    start = os.read(reading, 1)  # the writer is at work
    time.sleep(random.uniform(0, 0.25))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reading) as rest:
        reported = (start.decode() + rest.read()).splitlines()
    reader = Store(sys.argv[1], read_only=True)
    records = {record.seed: record for record in reader.select("demo")}
    for line in reported:
        kind, seed, *step = line.split()
        dataset = records[int(seed)].dataset
        if kind == "finished":
            assert records[int(seed)].state == "finished", line
        else:
            steps = [int(*step)]
            assert dataset.isel(step=steps).identical(result(int(seed), steps)), line
    unfinished = [record for record in records.values() if record.state != "finished"]
    assert len(unfinished) <= 1
    for record in records.values():
        if record.state == "finished":
            assert record.dataset.identical(result(record.seed)), record
        elif any(line.startswith(f"chunk {record.seed} ") for line in reported):
            steps = range(record.dataset.sizes["step"])
            assert record.dataset.identical(result(record.seed, steps)), record
    reader.close()
    print(len(reported), sum(line.startswith("finished") for line in reported), flush=True)
"""
)
NAMES: dict[str, object] = {}
exec(RESULT, NAMES)


def result(seed: int, *arguments: object) -> xr.Dataset:
    return NAMES["result"](seed, *arguments)  # type: ignore[operator,no-any-return]


@contextmanager
def running(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_readers_see_a_writer_at_work(tmp_path: Path) -> None:
    path, records = tmp_path / "runs.sqlite", 60
    with running(WRITER, path, records) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "0\n"
        seen: list[int] = []
        with Store(path, read_only=True) as reader:
            while not seen or seen[-1] < records:
                finished = reader.select("demo", state="finished")
                seen.append(len(finished))
                assert finished[-1].dataset.identical(result(finished[-1].seed))
            while writer.stdout.readline() != "appended\n":
                pass
            (record,) = reader.select("chunks")
            assert record.state is State.RUNNING
            assert record.dataset.identical(result(0, range(40)))
        assert seen == sorted(seen)
        assert len(set(seen)) > 2  # it was seen growing
        writer.stdin.close()
        assert writer.wait() == 0


def test_second_writer_is_told_who_is_first(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with running(WRITER, path, 1) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "0\n"
        with pytest.raises(StateError, match=f"open for writing in process {writer.pid}, and"):
            Store(path)
        link = tmp_path / "link.sqlite"
        link.symlink_to(path)
        with pytest.raises(StateError, match=f"open for writing in process {writer.pid}, and"):
            Store(link)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        with Store(path) as store:  # the lock ended with the process
            assert store.counts("demo")[State.FINISHED] == 1
            assert store.counts("chunks")[State.RUNNING] == 0


def test_writer_killed_at_random_moments_loses_nothing_it_reported(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", KILLER, path, str(KILLS), "0"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    counts = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(counts) == KILLS
    finished = sum(each[1] for each in counts)
    assert finished > 0
    with Store(path) as store:
        assert store.counts()[State.RUNNING] == 0
        records = store.select(state="finished")
        assert len(records) >= finished
        assert [record.seed for record in records] == list(range(len(records)))  # none twice
        assert all(record.dataset.identical(result(record.seed)) for record in records)
        resumed = store.compute("demo", {"rate": 0.1}, len(records), lambda: result(len(records)))
        assert resumed.identical(result(len(records)))
        assert max(record.attempts for record in store.select()) > 1  # some were cut short


def test_killed_writer_leaves_a_log_that_readers_recover(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with running(WRITER, path, 30) as writer:
        assert writer.stdout is not None
        while writer.stdout.readline() != "appended\n":
            pass
        writer.kill()
    log = path.with_name("runs.sqlite-wal").read_bytes()
    assert log
    with Store(path, read_only=True) as reader:
        assert reader.counts("demo")[State.FINISHED] == 30
        assert reader.select("chunks")[0].dataset.identical(result(0, range(40)))
    assert path.with_name("runs.sqlite-wal").read_bytes() == log  # left as it was found


INTERRUPTED = (
    RESULT
    + """
import sys, time
from normscope.results import Store

def slow():
    print("computing", flush=True)
    time.sleep(60)

with Store(sys.argv[1]) as store:
    store.compute("demo", {}, 0, slow)
"""
)


def test_ctrl_c_leaves_the_record_pending_and_the_folder_tidy(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    with running(
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + INTERRUPTED,
        path,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "computing\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) != 0
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    with Store(path, read_only=True) as reader:
        (record,) = reader.select()
        assert (record.state, record.attempts) == (State.PENDING, 1)
