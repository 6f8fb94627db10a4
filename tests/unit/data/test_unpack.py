from __future__ import annotations

import gzip
import io
import lzma
import random
import struct
import tarfile
import zlib
from pathlib import Path

import pytest
from tests.unit.data.synthetic import tar_gz

from normscope.data.content import read_file, read_members
from normscope.errors import DataError

NOISE = random.Random(0).randbytes(20000)
CONTENT = NOISE[:5000] + bytes(5000)


def packed(suffix: str) -> bytes:
    return {"": lambda c: c, ".gz": lambda c: gzip.compress(c, mtime=0), ".xz": lzma.compress}[
        suffix
    ](CONTENT)


def archive_with(**fields: object) -> bytes:
    """An archive whose one member has the given fields."""
    info = tarfile.TarInfo("folder/file")
    for name, value in fields.items():
        setattr(info, name, value)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_read_file_gives_the_content(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(packed(suffix))
    assert read_file(path, len(CONTENT)) == CONTENT


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_read_file_refuses_more_than_the_limit(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(packed(suffix))
    with pytest.raises(DataError, match="holds more than the 9999 bytes expected"):
        read_file(path, len(CONTENT) - 1)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("keep", [0, 5, 100, -1, -9])
def test_read_file_refuses_a_truncated_file(tmp_path: Path, suffix: str, keep: int) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(packed(suffix)[:keep])
    if suffix == ".gz" and keep == 0:  # no member at all is an empty file to gzip
        assert read_file(path, 10) == b""
        return
    with pytest.raises(DataError, match=r"truncated|damaged") as caught:
        read_file(path, len(CONTENT))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("position", [1, 60, 3000, -20])
def test_read_file_refuses_a_flipped_bit(tmp_path: Path, suffix: str, position: int) -> None:
    path = tmp_path / f"file{suffix}"
    raw = bytearray(packed(suffix))
    raw[position] ^= 16
    path.write_bytes(raw)
    with pytest.raises(DataError, match="cannot be used"):
        read_file(path, len(CONTENT))


def test_read_file_refuses_bytes_after_an_xz_stream(tmp_path: Path) -> None:
    path = tmp_path / "file.xz"
    path.write_bytes(packed(".xz") + b"more")
    with pytest.raises(DataError, match="bytes follow the end"):
        read_file(path, len(CONTENT))


def test_read_file_refuses_an_xz_header_that_asks_for_much_memory(tmp_path: Path) -> None:
    path = tmp_path / "file.xz"
    small = lzma.compress(b"x", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 4096}])
    huge = bytearray(small)
    assert huge[12:15] == bytes([2, 0, 0x21])  # header size, flags, LZMA2
    huge[16] = 38  # the dictionary's size, 2 GiB
    huge[20:24] = struct.pack("<I", zlib.crc32(huge[12:20]))
    path.write_bytes(huge)
    with pytest.raises(DataError, match=r"[Mm]emory"):
        read_file(path, 100)


def test_read_file_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_file(tmp_path / "absent", 10)


def test_read_members_gives_only_what_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(tar_gz({"f/a": b"one", "f/b": b"two", "./f/c": b"three"}))
    assert read_members(path, frozenset({"f/a", "f/c"}), 10**5) == {"f/a": b"one", "f/c": b"three"}
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "name", ["/etc/file", "../file", "folder/../../file", "..\\file", "C:file"]
)
def test_read_members_refuses_a_member_outside_its_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(tar_gz({"f/a": b"one", name: b"bad"}))
    with pytest.raises(DataError, match="lies outside the archive's folder"):
        read_members(path, frozenset({"f/a"}), 10**5)
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "fields",
    [
        {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        {"type": tarfile.LNKTYPE, "linkname": "other"},
        {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5},
        {"type": tarfile.BLKTYPE},
        {"type": tarfile.FIFOTYPE},
    ],
)
def test_read_members_refuses_links_and_devices(tmp_path: Path, fields: dict[str, object]) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(archive_with(**fields))
    with pytest.raises(DataError, match="neither a plain file nor a folder"):
        read_members(path, frozenset({"folder/file"}), 10**5)


def test_read_members_refuses_a_double(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(tar_gz({"f/a": b"one", "./f/a": b"two"}))
    with pytest.raises(DataError, match="occurs twice"):
        read_members(path, frozenset({"f/a"}), 10**5)


def test_read_members_refuses_a_bomb_without_unpacking_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(archive_with(size=50_000_000))
    with pytest.raises(DataError, match="holds more than the 100000 bytes expected"):
        read_members(path, frozenset({"folder/file"}), 10**5)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_read_members_refuses_a_truncated_archive(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "a.tar.gz"
    whole = tar_gz({"f/a": NOISE, "f/b": NOISE[::-1]})
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(DataError, match=r"truncated|damaged"):
        read_members(path, frozenset({"f/a"}), 10**6)


def test_read_members_refuses_a_wrong_checksum_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    raw = bytearray(tar_gz({"f/a": b"one"}))
    raw[-6] ^= 1  # gzip's checksum of the content
    path.write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        read_members(path, frozenset({"f/a"}), 10**5)


def test_read_members_refuses_what_is_not_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(b"not a tar at all" * 100))
    with pytest.raises(DataError, match="of another format"):
        read_members(path, frozenset({"f/a"}), 10**5)
