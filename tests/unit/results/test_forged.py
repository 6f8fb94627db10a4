"""Forged stores, with all checksums right: one clear error, never a crash, a hang or raw error."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from tests.adversarial.damage import (
    ENDLESS_VIEW,
    editing,
    forge_array,
    forge_layout,
    forge_schema,
    npy,
    seal,
)

from normscope.errors import DataError
from normscope.results import Store

LAYOUT = (
    '{"variables":[{"name":"loss","dims":["step"],"coordinate":false,"array":%s,'
    '"attributes":[%s]}],"attributes":[]}'
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "runs.sqlite"
    with Store(path) as store:
        store.compute("demo", {"rate": 0.1}, 0, lambda: xr.Dataset({"loss": ("step", np.ones(4))}))
    return path


def read(path: Path) -> xr.Dataset:
    with Store(path, read_only=True) as store:
        return store.select()[0].dataset


def test_forging_keeps_what_is_right(path: Path) -> None:
    forge_array(path, npy("<f8", (4,), np.arange(4.0).tobytes()))
    forge_layout(path, LAYOUT % (0, '["note","text"]'))
    assert read(path)["loss"].values.tolist() == [0, 1, 2, 3]
    assert read(path)["loss"].attrs == {"note": "text"}


@pytest.mark.parametrize(
    "descr", ["|O", [("a", "<f8"), ("b", "|O")], [("a", [("b", "|O")])], ("|O", (2,))]
)
def test_pointers_to_objects_are_never_made_of_bytes(path: Path, descr: object) -> None:
    """In a process of its own, which a pointer made of these bytes would kill."""
    forge_array(path, npy(descr, (4,), b"\x41" * 4 * 16))
    code = "import sys; from normscope.cli.main import main; sys.exit(main(sys.argv[1:]))"
    out = path.with_suffix(".html")
    done = subprocess.run(
        [sys.executable, "-c", code, "report", path, "-o", out], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "runs.sqlite is damaged: the data of record" in done.stderr


def npy_version_3(descr: object, shape: object, values: bytes = b"") -> bytes:
    first = npy(descr, shape, values)
    return first[:6] + b"\x03\x00" + first[8:10] + b"\0\0" + first[10:]


@pytest.mark.parametrize(
    "content",
    [
        npy("<f8", (4,), b"\0" * 8),
        npy("<f8", (4,), b"\0" * 40),
        npy("<f8", (-2, -2), b"\0" * 32),
        npy("<f8", (2**40,), b"\0" * 32),
        npy("<f8", (2**62, 4), b"\0" * 32),
        npy("|V0", (2**50,), b""),
        npy("|V0", (2**30,), b""),
        npy("|V0", (-1,), b""),
        npy("<U0", (-1,), b""),
        npy("|V0", (2**63 - 1,), b""),
        npy("<f8", (1,) * 100, b"\0" * 8),
        npy("<f8", (4.0,), b"\0" * 32),
        npy("<f8", 4, b"\0" * 32),
        npy("nonsense", (4,), b"\0" * 32),
        npy("<f8", (4,), b"\0" * 32)[:30],
        b"\x93NUMPY\x03\x00" + npy("<f8", (4,), b"\0" * 32)[8:],
        npy_version_3("|V0", (-1,)),
        npy_version_3("|V0", (2**63 - 1,)),
        npy_version_3("|O", (4,)),
        npy_version_3("<f8", (2**60,)),
        b"\x93NUMPY\x09\x00" + npy("<f8", (4,), b"\0" * 32)[8:],
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 0xFFFF,
        b"\x93NUMPY\x01\x00\xff\xff" + b"-" * 0xFFFE + b"1",
        b"",
        b"abc",
    ],
)
def test_array_of_another_length_or_header_is_refused(path: Path, content: bytes) -> None:
    forge_array(path, content)
    with pytest.raises(DataError, match="are not in the format of a store") as raised:
        read(path)
    assert "\n" not in str(raised.value)


def test_blob_that_is_not_compressed_is_refused(path: Path) -> None:
    forge_schema(path, "UPDATE arrays SET blob = x'616263'")
    seal(path)
    with pytest.raises(DataError, match="an array cannot be unpacked"):
        read(path)


@pytest.mark.parametrize("make", [npy, npy_version_3])
def test_small_blob_does_not_fill_the_memory(path: Path, make: Callable[..., bytes]) -> None:
    bomb = make("<f8", (4,), b"\0" * (50 << 20))
    forge_array(path, bomb)
    del bomb
    tracemalloc.start()
    with pytest.raises(DataError, match=r"another .*length"):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


def test_large_arrays_still_come_back(tmp_path: Path) -> None:
    """Larger than the first piece that is unpacked; plain and structured."""
    values = np.random.default_rng(0).normal(size=300_000)
    records = np.zeros(40_000, [("größer \u4e2d", "f8"), ("b", "i4")])
    records["b"] = np.arange(40_000) ** 2 % 1001
    dataset = xr.Dataset({"a": ("x", values), "b": ("y", records), "c": ("z", np.zeros(10**6))})
    with Store(tmp_path / "large.sqlite") as store:
        assert store.compute("demo", {}, 0, lambda: dataset).identical(dataset)


@pytest.mark.parametrize(
    "layout",
    [
        LAYOUT % (-1, ""),
        LAYOUT % ('"0"', ""),
        LAYOUT % ("true", ""),
        LAYOUT % (7, ""),
        LAYOUT % (0, '["a",' + "[" * 100_000 + "]" * 100_000 + "]"),
        LAYOUT % (0, '["a",' + "9" * 5000 + "]"),
        LAYOUT % (0, "[1,2]"),
        LAYOUT % (0, '["a",{"type":"float","value":[]}]'),
        LAYOUT % (0, '["a",{"type":"array","value":-1}]'),
        LAYOUT % (0, '["a",{"type":"mapping","value":[[1,2]]}]'),
        LAYOUT % (0, '["a",{}]'),
        (LAYOUT % (0, "")).replace('["step"]', '["a","b"]'),
        (LAYOUT % (0, "")).replace('["step"]', "[5]"),
        (LAYOUT % (0, "")).replace('["step"]', "null"),
        (LAYOUT % (0, "")).replace('"loss"', "[]"),
        (LAYOUT % (0, "")).replace("false", "1"),
        "[]",
        "null",
        "{",
        "",
    ],
)
def test_layout_of_another_form_is_refused(path: Path, layout: str) -> None:
    forge_layout(path, layout)
    with pytest.raises(DataError, match="are not in the format of a store") as raised:
        read(path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500 + len(str(path))


def test_variables_of_different_lengths_are_refused(path: Path) -> None:
    forge_schema(path, "INSERT INTO arrays (chunk, position, blob) VALUES (1, 1, x'00')")
    forge_array(path, npy("<f8", (3,), b"\0" * 24), number=2)
    layout = json.loads(LAYOUT % (0, ""))
    layout["variables"].append({**layout["variables"][0], "name": "other", "array": 1})
    forge_layout(path, json.dumps(layout))
    with pytest.raises(DataError, match="4 and 3 values along 'step'"):
        read(path)


@pytest.mark.parametrize(
    "parameters",
    ["[]", "5", "{", "[" * 100_000 + "]" * 100_000, '{"rate":NaN}', '{"rate":' + "9" * 5000 + "}"],
)
def test_parameters_of_another_form_are_refused(path: Path, parameters: str) -> None:
    with editing(path) as connection:
        connection.execute("UPDATE records SET parameters = ?", (parameters,))
    seal(path)
    with pytest.raises(DataError, match="the parameters of record 1 are not"):
        read(path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW extra AS SELECT 1",
        "CREATE TABLE extra (a)",
        "CREATE INDEX extra ON records (seed)",
        "CREATE TRIGGER extra AFTER INSERT ON records BEGIN DELETE FROM records; END",
        "CREATE VIRTUAL TABLE extra USING fts5 (a)",
        "ALTER TABLE records ADD COLUMN extra TEXT",
        "DROP INDEX records_by_experiment",
        "DROP TABLE arrays",
        "ALTER TABLE chunks RENAME COLUMN layout TO other",
    ],
)
@pytest.mark.parametrize("read_only", [True, False])
def test_other_tables_are_refused_untouched(path: Path, statement: str, read_only: bool) -> None:
    try:
        forge_schema(path, statement)
    except sqlite3.OperationalError as error:
        pytest.skip(str(error))  # SQLite without fts5
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"which normscope did not write|it lacks the"):
        Store(path, read_only=read_only)
    assert path.read_bytes() == before


def test_endless_view_is_never_queried(path: Path) -> None:
    forge_schema(path, *ENDLESS_VIEW)
    with pytest.raises(DataError, match="which normscope did not write"):
        Store(path, read_only=True)


def endless_tree(path: Path) -> None:
    """Let the pages of the table of records refer to one another: 40 ** 12 rows."""
    with editing(path) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'records'"
        ).fetchone()
    content = bytearray(path.read_bytes())
    leaf = bytes(content[(root - 1) * 4096 : root * 4096])
    pages = [root, *(len(content) // 4096 + 1 + number for number in range(12))]
    for page, below in pairwise(pages):
        cells = b"".join(below.to_bytes(4, "big") + b"\x01" for _ in range(40))
        start = 4096 - len(cells)
        header = b"\x05\0\0" + (40).to_bytes(2, "big") + start.to_bytes(2, "big") + b"\0"
        pointers = b"".join((start + 5 * index).to_bytes(2, "big") for index in range(40))
        made = (header + below.to_bytes(4, "big") + pointers).ljust(start, b"\0") + cells
        content[(page - 1) * 4096 : page * 4096] = made
    content += leaf
    content[28:32] = (len(content) // 4096).to_bytes(4, "big")
    path.write_bytes(content)


def test_query_that_would_not_end_is_stopped(path: Path) -> None:
    endless_tree(path)
    with (
        Store(path, read_only=True) as store,
        pytest.raises(DataError, match="far more steps than a file of its size explains"),
    ):
        store.select()
