"""MNIST: 28 x 28 handwritten digits in four IDX files, plain or gzipped."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping

import numpy as np

from normscope.data.collection import (
    COLLECTIONS,
    Collection,
    Layout,
    Official,
    Pixels,
    PixelSplits,
)
from normscope.data.content import corrupt
from normscope.data.dataset import DATASETS, Dataset
from normscope.data.images import load_images

_CLASSES = tuple("0123456789")
_UNSIGNED_BYTE = 0x08  # type code of IDX

# sha256 of the unpacked files
_OFFICIAL = {
    "train-images-idx3-ubyte": Official(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47_040_016
    ),
    "train-labels-idx1-ubyte": Official(
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60_008
    ),
    "t10k-images-idx3-ubyte": Official(
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7_840_016
    ),
    "t10k-labels-idx1-ubyte": Official(
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10_008
    ),
}

# sha256 of the gzipped files on the mirrors
_DOWNLOADS = {
    f"{part}.gz": sha256
    for part, sha256 in zip(
        _OFFICIAL,
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        strict=True,
    )
}


def parse_idx(raw: bytes, dimensions: int, where: str) -> Pixels:
    """Parse an IDX file of unsigned bytes: magic number, big-endian sizes, then the values.

    Args:
        raw: the content of the file.
        dimensions: the number it must have.
        where: the file's name, for messages.

    Returns:
        The array, read-only; it shares the memory of ``raw``.

    Raises:
        DataError: if magic number, sizes and length do not fit together.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), dimensions=1, where="example").tolist()
    [7, 9]
    """
    header = 4 + 4 * dimensions
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if raw[:4] != magic:
        raise corrupt(
            where,
            f"an IDX file of bytes in {dimensions} dimensions starts with {magic.hex()}, "
            f"this one with {raw[:4].hex() or 'nothing'}",
        )
    if len(raw) < header:
        raise corrupt(where, f"its header needs {header} bytes and it has only {len(raw)}")
    shape = struct.unpack(f">{dimensions}I", raw[4:header])
    expected = header + math.prod(shape)  # Python integers do not overflow
    if len(raw) != expected or 0 in shape:
        sizes = " x ".join(map(str, shape))
        raise corrupt(where, f"its header says {sizes}, {expected} bytes, and it has {len(raw)}")
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)


def _parse(part: str, raw: bytes, where: str) -> Pixels:
    if "images" in part:
        return parse_idx(raw, dimensions=3, where=where)
    labels = parse_idx(raw, dimensions=1, where=where)
    if (largest := int(labels.max())) >= len(_CLASSES):
        raise corrupt(where, f"it has the label {largest}, and labels go from 0 to 9")
    return labels


def _assemble(arrays: Mapping[str, Pixels], where: str) -> PixelSplits:
    train_images, train_labels, test_images, test_labels = (arrays[part] for part in _OFFICIAL)
    for images, labels in ((train_images, train_labels), (test_images, test_labels)):
        if len(images) != len(labels):
            raise corrupt(where, f"it has {len(images)} images and {len(labels)} labels of a split")
    if train_images.shape[1:] != test_images.shape[1:]:
        sizes = f"{train_images.shape[1:]} and {test_images.shape[1:]}"
        raise corrupt(where, f"training and test images differ in size, {sizes}")
    return PixelSplits(train_images[:, None], train_labels, test_images[:, None], test_labels)


MNIST = Collection(
    name="mnist",
    folders=(".", "mnist", "MNIST/raw"),  # the last one is torchvision's
    layouts=(Layout({part: (part, f"{part}.gz") for part in _OFFICIAL}),),
    official=_OFFICIAL,
    parse=_parse,
    assemble=_assemble,
    classes=_CLASSES,
    downloads=_DOWNLOADS,
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
)
COLLECTIONS[MNIST.name] = MNIST


@DATASETS.register
def mnist(root: str | os.PathLike[str] | None = None, verify: bool = True) -> Dataset:
    """Handwritten digits of 28 x 28 pixels: 60,000 to train on, 10,000 to test on.

    Args:
        root: the folder that holds the files; None: the default folders.
        verify: require the official content; a variant may differ in number and size of images.

    Returns:
        Images (samples, 1, 28, 28) and labels 0 to 9.
    """
    return load_images(MNIST, root, verify)
