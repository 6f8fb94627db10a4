"""MNIST: 28 x 28 handwritten digits in four IDX files, plain or gzipped."""

from __future__ import annotations

import os
from collections.abc import Mapping

from normscope.data.catalogue import DATASETS
from normscope.data.collection import (
    COLLECTIONS,
    Collection,
    Layout,
    Official,
    Pixels,
    PixelSplits,
)
from normscope.data.dataset import Dataset
from normscope.data.idx import parse_idx
from normscope.data.images import load_images
from normscope.data.unpack import corrupt

_CLASSES = tuple("0123456789")

# sha256 of the unpacked files, which any container must give back
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

# sha256 of the gzipped files as the mirrors have them
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
        "http://yann.lecun.com/exdb/mnist/",
    ),
)
COLLECTIONS[MNIST.name] = MNIST


@DATASETS.register
def mnist(root: str | os.PathLike[str] | None = None, verify: bool = True) -> Dataset:
    """Handwritten digits of 28 x 28 pixels: 60,000 to train on, 10,000 to test on.

    Args:
        root: the folder that holds the files, or None for the usual places.
        verify: require the official content; a variant may have other numbers and sizes of images.

    Returns:
        Images (samples, 1, 28, 28) and labels 0 to 9.
    """
    return load_images(MNIST, root, verify)
