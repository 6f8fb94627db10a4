"""Damaged and forged files: the right data, or one error in one line.

Never a crash, a hang, a raw exception or other data. A file without checksums (NetCDF, JSON, SVG)
may come back with other numbers where damage hit them; everything else is promised of it too.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import xarray as xr
from matplotlib.figure import Figure
from tests.adversarial import damage
from tests.adversarial.cases import Cases
from tests.adversarial.damage import SEEDS, stored
from tests.unit.data.synthetic import CIFAR10_FORMS, SmallData

import normscope as ns
from normscope.errors import NormscopeError, NormscopeWarning
from normscope.experiments import Result
from normscope.report import render, report_of
from normscope.results import Claim, Record, Store

# Of processor time, which other work does not lengthen: a case takes milliseconds, more is a hang.
# A deadlock, which takes none, ends at pytest's own limit.
_SECONDS = 20


class Hang(BaseException):
    """A case took too long."""


@contextlib.contextmanager
def limited(seconds: int = _SECONDS) -> Iterator[None]:
    """Raise `Hang` if the block computes longer."""

    def stop(number: int, frame: object) -> None:
        raise Hang(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.fixture
def cases(
    request: pytest.FixtureRequest, case_seeds: list[int], count: Callable[..., None]
) -> Cases:
    """The cases of this test."""
    kind = request.function.__name__.removeprefix("test_").replace("_", " ")
    return Cases(f"files, {kind}", case_seeds, count)


def try_case(cases: Cases, label: str, read: Callable[[], bool]) -> None:
    """Count how a case ends: right, refused, warned or failed.

    Args:
        cases: of the test.
        label: of the case.
        read: returns whether the data are right; raises a `NormscopeError` if it cannot read them.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with limited():
                is_right = read()
        except NormscopeError as error:
            one_line = "\n" not in str(error)
            cases.end(*(("refused",) if one_line else ("failed", f"{label}: lines: {error}")))
            return
        except (Exception, Hang) as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            cases.end("failed", f"{label}: {what}")
            return
    if is_right:
        cases.end("right")
    elif any(issubclass(each.category, NormscopeWarning) for each in caught):
        cases.end("warned")
    else:
        cases.end("failed", f"{label}: other data")


def is_whole(records: list[Record]) -> bool:
    """Return whether records are all of those that were stored, each as it was."""
    assert all(each.dataset.identical(stored(each.seed)) for each in records), "other data"
    return [each.seed for each in records] == list(SEEDS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole store."""
    path = tmp_path_factory.mktemp("store") / "runs.sqlite"
    with Store(path) as opened:
        for seed in SEEDS:
            opened.compute("demo", {"rate": 0.1 * seed}, seed, lambda: stored(seed))  # noqa: B023
    return path.read_bytes()


def read_store(path: Path) -> bool:
    with Store(path, read_only=True) as opened:
        whole = is_whole(opened.select("demo"))
        counts = opened.counts()
        opened.versions("demo"), opened.times("demo")
        opened.to_xarray("demo")
    return whole and sum(counts.values()) == len(SEEDS)


@pytest.mark.cases(sample=200, chunk=100)
def test_damaged_store(store: bytes, tmp_path: Path, cases: Cases) -> None:
    path = tmp_path / "runs.sqlite"
    for label, random in cases.randoms():
        name, content = damage.damaged(store, random)
        path.write_bytes(content)
        try_case(cases, f"{label}, {name}", lambda: read_store(path))
        for each in tmp_path.iterdir():
            each.unlink()


KILLED = """
import os, sys
from normscope.results import Store
from tests.adversarial.damage import SEEDS, stored

store = Store(sys.argv[1])
for seed in SEEDS:
    store.compute("demo", {"rate": 0.1 * seed}, seed, lambda: stored(seed))
os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a store whose writer was killed."""
    folder = tmp_path_factory.mktemp("killed")
    with Store(folder / "runs.sqlite"):
        pass  # so that the tables are in the file, and the records in the log
    subprocess.run([sys.executable, "-c", KILLED, folder / "runs.sqlite"], check=False)
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.mark.cases(sample=100, chunk=100)
def test_damaged_log(killed: dict[str, bytes], tmp_path: Path, cases: Cases) -> None:
    for label, random in cases.randoms():
        folder = tmp_path / "run"
        folder.mkdir()
        for name, content in killed.items():
            (folder / name).write_bytes(content)
        chosen = folder / f"runs.sqlite{random.choice(('', '-wal', '-wal', '-wal'))}"
        name, content = damage.damaged(chosen.read_bytes(), random)
        chosen.write_bytes(content)
        what = f"{label}, {name} of {chosen.name}"
        try_case(cases, what, lambda: read_store(tmp_path / "run" / "runs.sqlite"))
        shutil.rmtree(folder)


SWEPT = {"model": "fully_connected", "data": "digits", "loss": "cross_entropy", "norm": "batch"}
SWEPT |= {"batch_size": 64, "momentum": 0.0, "width": 20, "list": [1, {"a": None}]}


@pytest.fixture(scope="module")
def rich_store(store: bytes, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store with everything that a report draws: loss curves, a phase diagram and a scope."""
    path = tmp_path_factory.mktemp("rich") / "runs.sqlite"
    path.write_bytes(store)
    with Store(path) as opened:
        for gamma, rate in itertools.product((0.5, 1.0), (0.1, 1.0)):
            cell = xr.Dataset({"test_loss": gamma * rate, "outcome": "finished"})
            settings = {**SWEPT, "gamma": gamma, "learning_rate": rate}
            opened.compute("phase_diagram", settings, 0, lambda: cell)  # noqa: B023
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        x, y = torch.linspace(-1, 1, 32).reshape(8, 4), torch.arange(8) % 3
        with ns.Scope(model, "cross_entropy", learning_rate=0.1, every=1, store=opened) as scope:
            for _ in range(3):
                scope.step(x, y)
    return path.read_bytes()


def number_of(path: Path, table: str, random: Random) -> int:
    with damage.editing(path) as connection:
        (rows,) = connection.execute(f"SELECT max(id) FROM {table}").fetchone()
    return random.randrange(1, rows + 1)


def forge(path: Path, random: Random) -> str:
    """Forge a store, with right checksums; return what was done."""
    match random.choice(("header", "bytes", "numbers", "layout", "parameters", "value", "schema")):
        case "header":
            descr = random.choice(("<f8", "|O", "<M8[as]", "|V0", ">U3", [("a", "|O")], "f8,O", 5))
            shape = random.choice(((40,), (2**50,), (-1,), (-2, -20), (1,) * 70, (0, 2**63), 7, ()))
            values = random.randbytes(random.choice((0, 8, 320, 5000)))
            number = number_of(path, "arrays", random)
            damage.forge_array(path, damage.npy(descr, shape, values), number)
            return f"header {descr} {shape}"
        case "bytes":
            return damage.forge_bytes(path, number_of(path, "arrays", random), random)
        case "numbers":
            return damage.forge_numbers(path, number_of(path, "arrays", random), random)
        case "layout":
            return damage.forge_json(path, "chunks", "layout", random)
        case "parameters":
            return damage.forge_json(path, "records", "parameters", random)
        case "value":
            return forge_value(path, random)
        case _:
            statements = random.choice(damage.SCHEMAS)
            damage.forge_schema(path, *statements)
            return f"schema {statements[0]}"


def forge_value(path: Path, random: Random) -> str:
    """Set a value of any column, in a table that allows every type."""
    table, column = random.choice(
        (
            *(("records", name) for name in ("experiment", "seed", "state", "seconds", "error")),
            *(("chunks", name) for name in ("number", "layout", "digest", "record")),
            *(("arrays", name) for name in ("blob", "position", "chunk")),
            ("started_at", "seconds"),
            ("environments", "versions"),
        )
    )
    value = random.choice((None, -1, 2**62, 1e308, "x", b"x", "[]", "9" * 5000, '{"a": {}}'))
    with damage.editing(path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'STRICT', '')")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '')")
    with damage.editing(path) as connection, contextlib.suppress(damage.sqlite3.Error):
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = 1", (value,))
    with contextlib.suppress(Exception):
        damage.seal(path)
    with damage.editing(path) as connection:  # the tables look as they should again
        connection.execute("PRAGMA writable_schema = ON")
        for name, sql in whole_schema():
            connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, name))
    return f"{table}.{column} = {str(value)[:20]!r}"


def whole_schema() -> list[tuple[str, str]]:
    with Store(":memory:") as opened:
        key = opened.add("demo", {}, 0)
        opened.start(key)
        with opened._database.reading() as connection:
            return connection.execute(
                "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
            ).fetchall()


@pytest.mark.cases(sample=60, chunk=100)
def test_forged_store(rich_store: bytes, tmp_path: Path, cases: Cases) -> None:
    """Any data may be forged; but reading and reporting them must not fail otherwise."""
    path = tmp_path / "runs.sqlite"

    def read() -> bool:
        with Store(path, read_only=True) as opened:
            records = opened.select()
            for record in records:
                with contextlib.suppress(NormscopeError):
                    record.dataset  # noqa: B018
            for name in {each.experiment for each in records}:
                with contextlib.suppress(NormscopeError):
                    opened.to_xarray(name)
        if with_report:
            render(report_of([path]))
        return True

    for label, random in cases.randoms():
        path.write_bytes(rich_store)
        what = forge(path, random)
        with_report = random.random() < 0.2  # drawing takes most of the time
        try_case(cases, f"{label}, {what}", read)
        for each in tmp_path.iterdir():
            each.unlink()


def draw(dataset: xr.Dataset) -> Figure:
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot(dataset["step"], dataset["loss"])
    return figure


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a result."""
    folder = tmp_path_factory.mktemp("results")
    claims = (Claim("the loss falls", "wei2018, Figure 1", "2 to 1", True),)
    settings = {"seeds": 3, "seed": 0}
    dataset = stored(0).drop_vars("layer").assign_attrs(list="[1]")
    whole = Result("wei2018/figure1", "small", dataset, claims, settings, {}, 1.5, draw)
    whole.write(folder)
    return {each.name: each.read_bytes() for each in (folder / "wei2018").iterdir()}


@pytest.mark.cases(sample=60, chunk=100)
def test_damaged_result(results: dict[str, bytes], tmp_path: Path, cases: Cases) -> None:
    for label, random in cases.randoms():
        for name, content in results.items():
            (tmp_path / name).write_bytes(content)
        chosen = tmp_path / random.choice(list(results))
        if chosen.suffix == ".json" and random.random() < 0.5:
            name = "mutated"
            text = damage.mutate_json(chosen.read_text(encoding="utf-8"), random)
            chosen.write_text(text, encoding="utf-8")
        else:
            name, content = damage.damaged(chosen.read_bytes(), random)
            chosen.write_bytes(content)
        given = chosen if random.random() < 0.5 else tmp_path

        def read(given: Path = given) -> bool:
            return bool(render(report_of([given])))

        try_case(cases, f"{label}, {name} of {chosen.name}", read)


def train(path: Path, steps: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    x = torch.linspace(-1, 1, 32).reshape(8, 4)
    problem = ns.Problem(model, "cross_entropy", (x, torch.arange(8) % 3))
    run = ns.fit(problem, ns.sgd(0.1, momentum=0.9), steps=steps, batch_size=4, checkpoint=path)
    return {"losses": list(run.losses), **{k: v.tolist() for k, v in model.state_dict().items()}}


@pytest.mark.cases(sample=60, chunk=100)
def test_damaged_checkpoint(tmp_path: Path, cases: Cases) -> None:
    path = tmp_path / "training.pt"
    expected = train(tmp_path / "whole.pt", 6)
    train(path, 3)
    whole = path.read_bytes()
    for label, random in cases.randoms():
        name, content = damage.damaged(whole, random)
        path.write_bytes(content)
        try_case(cases, f"{label}, {name}", lambda: train(path, 6) == expected)


@pytest.mark.cases(sample=60, chunk=100)
def test_damaged_data(tmp_path: Path, cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = SmallData()
    small.make_official(monkeypatch)
    folders = {
        ("mnist", "packed"): small.write_mnist(tmp_path / "packed"),
        ("mnist", "plain"): small.write_mnist(tmp_path / "plain", packed=False),
        **{("cifar10", form): small.write_cifar10(tmp_path / form, form) for form in CIFAR10_FORMS},
    }
    expected = {key: ns.data.load(key[0], root=each).train for key, each in folders.items()}
    for label, random in cases.randoms():
        key = random.choice(list(folders))
        verify = random.random() < 0.7
        path = random.choice(sorted(each for each in folders[key].rglob("*") if each.is_file()))
        whole = path.read_bytes()
        kind, content = damage.damaged(whole, random)
        path.write_bytes(content)

        def read(key: tuple[str, str] = key, verify: bool = verify) -> bool:
            found = ns.data.load(key[0], root=folders[key], verify=verify).train
            same = found.x.equal(expected[key].x) and found.y.equal(expected[key].y)
            return same or not verify  # without the digests only the form is checked

        try_case(cases, f"{label}, {kind} of {path.name} ({key})", read)
        path.write_bytes(whole)
