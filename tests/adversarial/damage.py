"""Damaged and forged files.

Damage changes bytes at random: a flipped bit, a lost end, pages in the wrong order. Forgery changes
the meaning and makes all checksums right again, as somebody would who wants the reader to fail.
Whatever reads such a file must return the right data or raise a `NormscopeError` in one line.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import xarray as xr

from normscope.results.codec import Content
from normscope.results.record import Identity

Damage = Callable[[bytes, Random], bytes]

PAGE = 4096
SEEDS = range(12)


def stored(seed: int) -> xr.Dataset:
    """The result that the record of a seed has in the stores that are damaged."""
    random = np.random.default_rng(seed)
    return xr.Dataset(
        {"loss": ("step", random.normal(size=40)), "final": ((), random.normal())},
        {"step": np.arange(40) * 50, "layer": ("part", ["conv", "größer"])},
        {"note": f"seed {seed}", "list": [1, None, (2.5, float("inf"))], "array": np.arange(3)},
    )


def flip_bit(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]


def flip_bits(content: bytes, random: Random) -> bytes:
    for _ in range(random.randrange(2, 30)):
        content = flip_bit(content, random)
    return content


def truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content))]


def append(content: bytes, random: Random) -> bytes:
    return content + random.randbytes(random.randrange(1, 2 * PAGE))


def overwrite(content: bytes, random: Random) -> bytes:
    """Fill a range with zeros, ones or noise."""
    start, length = random.randrange(len(content)), random.choice((1, 4, 16, 512, PAGE))
    filling = random.choice((b"\0" * length, b"\xff" * length, random.randbytes(length)))
    return (content[:start] + filling + content[start + length :])[: len(content)]


def exchange(content: bytes, random: Random) -> bytes:
    """Exchange two blocks, as a disk that writes to the wrong place."""
    size = random.choice((16, 512, PAGE))
    first, second = (random.randrange(max(len(content) // size, 1)) * size for _ in range(2))
    changed = bytearray(content)
    block = changed[first : first + size]
    other = changed[second : second + size]
    changed[second : second + len(block)] = block
    changed[first : first + len(other)] = other
    return bytes(changed)


def repeat(content: bytes, random: Random) -> bytes:
    """Insert a copy of a range, or leave a range out."""
    start = random.randrange(len(content))
    end = min(len(content), start + random.choice((1, 7, 512, PAGE)))
    return content[: random.choice((start, end))] + content[random.choice((start, end)) :]


def change_number(content: bytes, random: Random) -> bytes:
    """Set a big-endian number, as the sizes in headers are, to a small or an extreme one."""
    width = random.choice((1, 2, 4, 8))
    at = random.randrange(min(len(content), random.choice((128, len(content)))))
    largest = (1 << 8 * width) - 1
    value = random.choice((0, 1, 2, largest, largest >> 1, (largest >> 1) + 1))
    changed = content[:at] + value.to_bytes(width, "big") + content[at + width :]
    return changed[: len(content)]


DAMAGES: tuple[Damage, ...] = (
    *(flip_bit, flip_bit, flip_bits, truncate, append, overwrite, exchange, repeat),
    change_number,
)


def damaged(content: bytes, random: Random) -> tuple[str, bytes]:
    """Return the name of a random damage and the damaged content."""
    damage = random.choice(DAMAGES)
    return damage.__name__, damage(content, random)


@contextlib.contextmanager
def editing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the database of a store, committed at the end."""
    connection = sqlite3.connect(path)
    try:
        yield connection
        connection.commit()
    finally:
        connection.close()


def seal(path: Path) -> None:
    """Make all keys and digests of a store right, whatever the records hold now."""
    with editing(path) as connection:
        for number, *identity in connection.execute(
            "SELECT id, experiment, parameters, seed, revision, version FROM records"
        ).fetchall():
            key = Identity(*identity).key
            connection.execute("UPDATE records SET key = ? WHERE id = ?", (key, number))
            chunks = connection.execute(
                "SELECT id, number, layout FROM chunks WHERE record = ?", (number,)
            ).fetchall()
            for chunk, position, layout in chunks:
                blobs = connection.execute(
                    "SELECT blob FROM arrays WHERE chunk = ? ORDER BY position", (chunk,)
                ).fetchall()
                content = Content(layout, tuple(blob for (blob,) in blobs))
                connection.execute(
                    "UPDATE chunks SET digest = ? WHERE id = ?",
                    (content.digest(key, position), chunk),
                )


def npy(descr: Any, shape: Any, values: bytes, *, in_columns: bool = False) -> bytes:
    """Return an npy file with any header."""
    header = repr({"descr": descr, "fortran_order": in_columns, "shape": shape}).encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + values


def forge_array(path: Path, content: bytes, number: int = 1) -> None:
    """Replace an array of a store by any npy content, with the right digests."""
    with editing(path) as connection:
        blob = zlib.compress(content)
        connection.execute("UPDATE arrays SET blob = ? WHERE id = ?", (blob, number))
    seal(path)


def forge_layout(path: Path, layout: str) -> None:
    """Replace the layout of every dataset in a store, with the right digests."""
    with editing(path) as connection:
        connection.execute("UPDATE chunks SET layout = ?", (layout,))
    seal(path)


def forge_schema(path: Path, *statements: str) -> None:
    """Execute statements on the database of a store."""
    with editing(path) as connection:
        for statement in statements:
            connection.execute(statement)


# A view with the name and the columns of the records, which never ends.
ENDLESS_VIEW = (
    "ALTER TABLE records RENAME TO hidden",
    "CREATE VIEW records AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT id, key, experiment, parameters, seed, revision, version, state, attempts, error, "
    "seconds FROM hidden, n WHERE n.i < 0",
)

SCHEMAS: tuple[tuple[str, ...], ...] = (
    ENDLESS_VIEW,
    ("CREATE TRIGGER t AFTER UPDATE ON records BEGIN DELETE FROM records; END",),
    ("DROP TABLE arrays",),
    ("DROP TABLE started_at",),
    ("DELETE FROM chunks WHERE record = 2",),
    ("PRAGMA user_version = 7",),
)

NUMBERS = (0, 1, -1, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan, 2**62, -(2**62))


def forge_bytes(path: Path, number: int, random: Random) -> str:
    """Damage the npy of an array, with the right digests."""
    with editing(path) as connection:
        query = "SELECT blob FROM arrays WHERE id = ?"
        (blob,) = connection.execute(query, (number,)).fetchone()
    name, content = damaged(zlib.decompress(blob), random)
    forge_array(path, content, number)
    return f"bytes {name} of array {number}"


def forge_numbers(path: Path, number: int, random: Random) -> str:
    """Set some values of an array of numbers to extreme ones."""
    with editing(path) as connection:
        query = "SELECT blob FROM arrays WHERE id = ?"
        (blob,) = connection.execute(query, (number,)).fetchone()
    array = np.lib.format.read_array(io.BytesIO(zlib.decompress(blob)))
    if array.dtype.kind not in "biuf" or not array.size:
        return "nothing"
    flat = array.astype(float if random.random() < 0.5 else array.dtype).ravel()
    with np.errstate(all="ignore"):
        for _ in range(random.choice((1, 3, flat.size))):
            value = np.array(random.choice(NUMBERS), float)
            flat[random.randrange(flat.size)] = value.astype(flat.dtype)
    stream = io.BytesIO()
    np.lib.format.write_array(stream, flat.reshape(array.shape))
    forge_array(path, stream.getvalue(), number)
    return f"numbers {flat[:3]} of array {number}"


def forge_json(path: Path, table: str, column: str, random: Random) -> str:
    """Change a value in the JSON of a row, with the right digests."""
    with editing(path) as connection:
        rows = connection.execute(f"SELECT id, {column} FROM {table}").fetchall()
        number, text = random.choice(rows)
        changed = mutate_json(text, random)
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (changed, number))
    seal(path)
    return f"{column} {number}: {changed[:60]}"


VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 2**63, 10**4200, 0.5, "", "x", "NaN", [], {}, [[]], ["a", "a"]),
    *({"type": "float", "value": []}, {"type": "array", "value": -1}, {"type": "tuple"}),
    *({"type": "scalar", "value": "0"}, {"type": "mapping", "value": [[1, 2]]}),
)


def mutate_json(text: str, random: Random) -> str:
    """Return JSON in which one value, anywhere, is replaced, removed, or nested very deeply."""
    if random.random() < 0.05:
        depth = random.choice((50, 900, 100_000))
        return "[" * depth + "]" * depth
    root = [json.loads(text)]
    holder, position = random.choice(list(_places(root)))
    if random.random() < 0.2 and isinstance(holder, dict):
        del holder[position]
    else:
        holder[position] = random.choice(VALUES)
    return json.dumps(root[0])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every list or dict with each of its positions."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for position, item in list(items):
        yield value, position
        if isinstance(item, list | dict):
            yield from _places(item)
