"""Small MNIST and CIFAR-10 files in every format, with random content."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import lzma
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from normscope.data import cifar10, mnist
from normscope.data.collection import COLLECTIONS, Official

BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def python2_pickle(records: np.ndarray, name: bytes = b"training batch 1 of 5") -> bytes:
    """A batch as Python 2 wrote it: protocol 2, byte strings, numpy's old module names."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    labels = b"".join(b"K" + bytes([label]) for label in records[:, 0])
    raw = records[:, 1:].tobytes()
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    )
    array += b"(K\x01" + b"M" + struct.pack("<H", len(records)) + b"M\x00\x0c\x86" + dtype
    array += b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    items = text(b"batch_label") + text(name) + text(b"labels") + b"](" + labels + b"e"
    items += text(b"data") + array + text(b"filenames") + b"](" + text(b"a_s_000004.png") + b"e"
    return b"\x80\x02}(" + items + b"u."


def python3_pickle(records: np.ndarray, protocol: int = 4) -> bytes:
    batch = {"labels": records[:, 0].astype(int).tolist(), "data": records[:, 1:].copy()}
    return pickle.dumps(batch, protocol=protocol)


def tar_gz(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class SmallData:
    """Raw content of both data sets, by part."""

    def __init__(self) -> None:
        random = np.random.RandomState(0)
        self.mnist = {
            "train-images-idx3-ubyte": idx(random.randint(0, 256, (40, 28, 28))),
            "train-labels-idx1-ubyte": idx(np.arange(40) % 10),
            "t10k-images-idx3-ubyte": idx(random.randint(0, 256, (20, 28, 28))),
            "t10k-labels-idx1-ubyte": idx(np.arange(20) % 10),
        }
        self.records = {}
        for part in BATCHES:
            records = random.randint(0, 256, (20, 3073)).astype(np.uint8)
            records[:, 0] = np.arange(20) % 10
            self.records[part] = records
        self.cifar10 = {part: records.tobytes() for part, records in self.records.items()}

    def make_official(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, name, parts in (
            (mnist, "MNIST", self.mnist),
            (cifar10, "CIFAR10", self.cifar10),
        ):
            official = {
                part: Official(hashlib.sha256(raw).hexdigest(), len(raw))
                for part, raw in parts.items()
            }
            collection = dataclasses.replace(getattr(module, name), official=official)
            monkeypatch.setattr(module, name, collection)
            monkeypatch.setitem(COLLECTIONS, collection.name, collection)

    def write_mnist(self, folder: Path, packed: bool = True) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for part, raw in self.mnist.items():
            name = f"{part}.gz" if packed else part
            (folder / name).write_bytes(gzip.compress(raw) if packed else raw)
        return folder

    def write_cifar10(self, root: Path, form: str) -> Path:
        root.mkdir(parents=True, exist_ok=True)
        for name, content in self.cifar10_files(form).items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_bytes(content)
        return root

    def cifar10_files(self, form: str) -> dict[str, bytes]:
        binary = {f"cifar-10-batches-bin/{part}.bin": raw for part, raw in self.cifar10.items()}
        pickled = {
            f"cifar-10-batches-py/{part}": python2_pickle(records)
            for part, records in self.records.items()
        }
        forms = {
            "bin": lambda: binary,
            "xz": lambda: {f"{name}.xz": lzma.compress(raw) for name, raw in binary.items()},
            "binary tar": lambda: {"cifar-10-binary.tar.gz": tar_gz(binary)},
            "pickles": lambda: pickled,
            "new pickles": lambda: {
                f"cifar-10-batches-py/{part}": python3_pickle(records)
                for part, records in self.records.items()
            },
            "python tar": lambda: {"cifar-10-python.tar.gz": tar_gz(pickled)},
        }
        return forms[form]()


CIFAR10_FORMS = ["bin", "xz", "binary tar", "pickles", "new pickles", "python tar"]
