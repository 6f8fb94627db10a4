"""Files that are not stores, damaged files, full disks: one clear error, and nothing lost."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from normscope.errors import DataError, NormscopeError, StateError
from normscope.results import State, Store
from normscope.results.schema import SCHEMA_VERSION

READ_AND_WRITE = (False, True)


def result(seed: int) -> xr.Dataset:
    values = np.random.default_rng(seed).normal(size=2000)
    return xr.Dataset({"loss": ("step", values)}, attrs={"note": f"seed {seed}"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with ten finished records."""
    path = tmp_path / "runs.sqlite"
    with Store(path) as store:
        for seed in range(10):
            store.compute("demo", {"rate": 0.1}, seed, lambda: result(seed))  # noqa: B023
    return path


def all_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("read_only", READ_AND_WRITE)
@pytest.mark.parametrize("content", [b"x", b"some text, not a database\n" * 100])
def test_other_file_is_refused_untouched(tmp_path: Path, content: bytes, read_only: bool) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"notes\.txt is not a store of normscope"):
        Store(path, read_only=read_only)
    assert all_files(tmp_path) == {"notes.txt": content}


@pytest.mark.parametrize("read_only", READ_AND_WRITE)
def test_other_database_is_refused_untouched(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE records (id INTEGER PRIMARY KEY)")
    connection.close()
    before = all_files(tmp_path)
    with pytest.raises(DataError, match="is a database, but not a store of normscope"):
        Store(path, read_only=read_only)
    assert all_files(tmp_path) == before


def test_empty_file_becomes_a_store_for_a_writer_only(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    path.touch()
    with pytest.raises(DataError, match="is not a store"):
        Store(path, read_only=True)
    with Store(path) as store:
        assert store.select() == []


def test_missing_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no store at"):
        Store(tmp_path / "absent.sqlite", read_only=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("read_only", READ_AND_WRITE)
def test_folder_is_no_store(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(NormscopeError, match="folder"):
        Store(tmp_path / "folder", read_only=read_only)
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("read_only", READ_AND_WRITE)
@pytest.mark.parametrize(
    ("version", "message"),
    [
        (SCHEMA_VERSION + 1, "written by a newer normscope .* update normscope"),
        (SCHEMA_VERSION - 1, "written by an older normscope .* start a new file"),
    ],
)
def test_other_schema_is_refused_untouched(
    path: Path, version: int, message: str, read_only: bool
) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StateError, match=message):
        Store(path, read_only=read_only)
    assert path.read_bytes() == before


@pytest.mark.parametrize("read_only", READ_AND_WRITE)
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.99])
def test_truncated_file_is_told(path: Path, share: float, read_only: bool) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"is not a store|is damaged"):
        Store(path, read_only=read_only)
    assert path.read_bytes() == content[: int(share * len(content))]


def readable(path: Path) -> tuple[int, int]:
    """How many records of a file come back as written, and how many are told to be damaged."""
    sound, told = 0, 0
    with Store(path, read_only=True) as store:
        keys = [store.select("demo", seed=seed, rate=0.1) for seed in range(10)]
        for (record,) in keys:
            try:
                dataset = record.dataset
            except DataError:
                told += 1
            else:
                assert dataset.identical(result(record.seed))
                sound += 1
    return sound, told


def test_flipped_byte_of_a_blob_is_told_and_spares_the_others(path: Path) -> None:
    assert readable(path) == (10, 0)
    connection = sqlite3.connect(path)
    (blob,) = connection.execute("SELECT blob FROM arrays WHERE id = 4").fetchone()
    connection.close()
    content = path.read_bytes()
    # far along the overflow pages of the blob, where SQLite itself sees nothing
    at = content.index(blob[9000:9040]) + 20
    path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
    assert readable(path) == (9, 1)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE arrays SET chunk = chunk + 100; UPDATE arrays SET chunk = 111 - chunk",
        "UPDATE chunks SET layout = replace(layout, 'seed 3', 'seed 4')",
        "UPDATE chunks SET record = record + 100; UPDATE chunks SET record = 111 - record",
        "DELETE FROM arrays WHERE chunk = 5",
        "DELETE FROM chunks WHERE id = 5",
        "UPDATE chunks SET number = 1 WHERE id = 5",
    ],
)
def test_data_of_another_record_are_never_returned(path: Path, change: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(change)
    connection.close()
    _, told = readable(path)
    assert told == (1 if "5" in change or "seed 3" in change else 10)


@pytest.mark.parametrize(
    "change",
    [
        """parameters = '{"rate":0.2}'""",
        "seed = 11",
        "revision = 2",
        "state = 'finisheb'",
        "experiment = CAST(x'64656dff' AS TEXT)",
    ],
)
def test_changed_record_is_told(path: Path, change: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE records SET {change} WHERE id = 4")
    (key,) = connection.execute("SELECT key FROM records WHERE id = 4").fetchone()
    connection.commit()
    connection.close()
    with Store(path) as store:
        with pytest.raises(DataError, match="damaged: record 4 is not what was written"):
            store.get(key)
        assert store.select(seed=0)[0].dataset.identical(result(0))


def test_random_damage_is_told_or_harmless(path: Path) -> None:
    """Whatever page is overwritten: an error of ours or the right data, never other data."""
    content = path.read_bytes()
    pages, random = len(content) // 4096, np.random.default_rng(0)
    outcomes = set()
    for page in range(pages):
        damage = bytearray(content)
        damage[page * 4096 : (page + 1) * 4096] = random.bytes(4096)
        path.write_bytes(damage)
        try:
            outcomes.add("sound" if readable(path) == (10, 0) else "told by record")
        except NormscopeError:
            outcomes.add("told")
    assert outcomes >= {"told", "told by record"}


def test_full_disk_is_told_and_loses_nothing(path: Path) -> None:
    with Store(path) as store:
        key = store.add("demo", {"rate": 0.2}, 0)
        store.start(key)
        with store._database.reading() as connection:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(StateError, match="the disk is full; free some space and run again"):
            store.finish(key, result(0))
        assert store.get(key).state is State.RUNNING
        with store._database.reading() as connection:
            connection.execute("PRAGMA max_page_count = 100000")
        store.finish(key, result(0))
        assert store.get(key).dataset.identical(result(0))
    assert readable(path) == (10, 0)


LIMITED = """
import sys, resource
import numpy as np, xarray as xr
from normscope.errors import StateError
from normscope.results import Store

with Store(sys.argv[1]) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    for seed in range(100, 200):
        values = np.random.default_rng(seed).normal(size=2000)
        try:
            store.compute("demo", {"rate": 0}, seed, lambda: xr.Dataset({"loss": ("step", values)}))
        except StateError as error:
            print(error)
            break
        print(seed)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


def test_file_that_cannot_grow_keeps_what_was_finished(path: Path) -> None:
    limit = path.stat().st_size + 100_000
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, path, str(limit)],
        capture_output=True,
        text=True,
        check=True,
    )
    *seeds, error = done.stdout.splitlines()
    assert "cannot be read or written" in error or "the disk is full" in error
    assert len(seeds) > 2
    assert readable(path) == (10, 0)
    with Store(path) as store:
        for seed in map(int, seeds):
            (record,) = store.select(seed=seed)
            values = np.random.default_rng(seed).normal(size=2000)
            np.testing.assert_array_equal(record.dataset["loss"], values)
        seed = int(seeds[-1]) + 1
        states = [record.state for record in store.select(seed=seed)]
        assert states in ([], [State.FAILED], [State.PENDING])  # as far as there was room
        assert store.compute("demo", {"rate": 0}, seed, lambda: result(0)).equals(result(0))


@pytest.fixture
def sealed(path: Path) -> Iterator[Path]:
    """The store in a folder that the other user can read and not write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sealed = folder / path.name
        sealed.write_bytes(path.read_bytes())
        sealed.chmod(0o444)
        folder.chmod(0o555)
        yield sealed
        folder.chmod(0o755)


AS_OTHER_USER = """
import os, sys
import numpy
from normscope.errors import NormscopeError
from normscope.results import Store

if os.geteuid() == 0:
    os.setgroups([])
    nobody = 65534  # root itself may write everywhere
    os.setresuid(nobody, nobody, nobody)
try:
    with Store(sys.argv[1], read_only=sys.argv[2] == "read") as store:
        print(len(store.select()), sum(float(r.dataset["loss"].sum()) for r in store.select()))
except NormscopeError as error:
    print(error)
"""


def run_as_other_user(path: Path, mode: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", AS_OTHER_USER, path, mode],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_folder_that_cannot_be_written_can_be_read(sealed: Path) -> None:
    expected = sum(float(result(seed)["loss"].sum()) for seed in range(10))
    assert run_as_other_user(sealed, "read") == f"10 {expected}"
    assert [file.name for file in sealed.parent.iterdir()] == [sealed.name]


def test_folder_that_cannot_be_written_is_told(sealed: Path) -> None:
    told = run_as_other_user(sealed, "write")
    assert "cannot be written (Permission denied)" in told
    assert "read_only=True" in told
    assert "\n" not in told


FOLLOWING = """
import os, sys
from normscope.results import Store

if os.geteuid() == 0:
    nobody = 65534
    os.setgroups([])
    os.setresuid(nobody, nobody, nobody)
with Store(sys.argv[1], read_only=True) as store:
    while True:
        records = store.select()
        print(len(records), float(records[-1].dataset["loss"].sum()), flush=True)
        if not sys.stdin.readline():
            break
"""


def test_reader_without_permission_follows_a_writer_that_comes_and_goes(sealed: Path) -> None:
    folder = sealed.parent

    def add(store: Store, seed: int) -> str:
        store.compute("demo", {"rate": 0.2}, seed, lambda: result(seed))
        return f"{11 + seed} {float(result(seed)['loss'].sum())}\n"

    with subprocess.Popen(
        [sys.executable, "-c", FOLLOWING, sealed],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None

        def seen() -> str:
            reader.stdin.write("\n")
            reader.stdin.flush()
            return reader.stdout.readline()

        assert reader.stdout.readline().startswith("10 ")
        sealed.chmod(0o644)
        for seed in (0, 2):
            folder.chmod(0o755)
            with Store(sealed) as store:
                expected = add(store, seed)
                folder.chmod(0o555)
                assert seen() == expected
                expected = add(store, seed + 1)
            assert seen() == expected
        reader.stdin.close()
        assert reader.wait() == 0


@pytest.mark.parametrize("damage", [b"`igest BLOB", b"`igest BL\xffB"])
def test_damaged_schema_is_told_in_one_line(path: Path, damage: bytes) -> None:
    """SQLite quotes the rest of the definition, line breaks and bytes that are not UTF-8 too."""
    path.write_bytes(path.read_bytes().replace(b"digest BLOB", damage))
    with pytest.raises(DataError, match="is damaged: SQLite reports") as raised:
        Store(path, read_only=True)
    assert "\n" not in str(raised.value)


def root_page(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    query = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
    (page,) = connection.execute(query, (table,)).fetchone()
    connection.close()
    return int(page)


@pytest.mark.parametrize("table", ["records", "records_by_experiment"])
def test_record_that_a_page_has_lost_is_missed(path: Path, table: str) -> None:
    """SQLite itself does not notice that a page counts one entry less."""
    at = (root_page(path, table) - 1) * 4096 + 4  # the lower byte of the number of entries
    content = bytearray(path.read_bytes())
    assert content[at] == 10
    content[at] = 9
    path.write_bytes(content)
    with Store(path, read_only=True) as store:
        for call in (store.select, store.counts, lambda: store.select("demo")):
            with pytest.raises(DataError, match=r"records and .* in their index"):
                call()


@pytest.mark.parametrize("table", ["records", "records_by_experiment"])
def test_record_with_a_damaged_name_is_never_passed_over(path: Path, table: str) -> None:
    start = (root_page(path, table) - 1) * 4096
    content = bytearray(path.read_bytes())
    at = content.index(b"demo", start)
    assert at < start + 4096
    content[at + 2] = ord("o")
    path.write_bytes(content)
    with Store(path, read_only=True) as store:
        if table == "records":
            with pytest.raises(DataError, match="is not what was written"):
                store.select("demo")
        else:  # the index alone is damaged
            assert len(store.select("demo")) == 10
            assert store.counts("demo")[State.FINISHED] == 10


def test_record_with_a_damaged_seed_is_told_if_it_is_the_wanted_one(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("UPDATE records SET seed = 99 WHERE seed = 3")
    connection.commit()
    connection.close()
    with Store(path, read_only=True) as store:
        for seed in (3, 99):
            with pytest.raises(DataError, match="is not what was written"):
                store.select("demo", seed=seed)
        assert len(store.select("demo", seed=4)) == 1


def test_key_that_its_index_has_lost_is_damage(path: Path) -> None:
    at = (root_page(path, "sqlite_autoindex_records_1") - 1) * 4096 + 4
    content = bytearray(path.read_bytes())
    content[at] -= 1
    path.write_bytes(content)
    with Store(path, read_only=True) as store:
        keys = [each.key for each in store.select("demo")]
        with pytest.raises(DataError, match="the index of its records lacks"):
            list(map(store.get, keys))
