"""Data sets by name: what a loaded one is, the registry of loaders, and ``load``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from normscope.registry import Registry, unknown_name


class Split(NamedTuple):
    """Samples and their targets; unpacks as ``x, y``."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, repr=False, eq=False)
class Dataset:
    """A loaded data set.

    Args:
        name: the name it is loaded by.
        train: training samples; images are float32 (samples, channels, height, width), labels
            int64 (samples,).
        test: test samples, in the same form.
        classes: the names of the classes by label; empty for a regression.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        train, test = tuple(self.train.x.shape), tuple(self.test.x.shape)
        return f"Dataset({self.name}: train {train}, test {test}, {len(self.classes)} classes)"


DATASETS: Registry[Callable[..., Dataset]] = Registry("dataset", package="normscope.data")
"""The loaders of the data sets by name."""


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    verify: bool = True,
    **options: Any,
) -> Dataset:
    """Load a data set as tensors, ready for training.

    Images are standardized to mean 0 and variance 1 per channel, by the constants of the training
    split. MNIST and CIFAR-10 are searched for in ``root`` only, if it is given; otherwise in
    ``$NORMSCOPE_DATA``, in the user cache, and then downloaded. Their tensors are memory-mapped
    copy-on-write from a cache of parsed arrays (MNIST 220 MB, CIFAR-10 740 MB of the user cache):
    writing to a tensor never changes the file.

    Args:
        name: ``digits``, ``mnist``, ``cifar10`` or ``gaussian``.
        root: the folder that holds the files; embedded and generated data do not need it.
        verify: require the official content by its digest; False allows a variant of the same form.
        **options: further options of that data set, such as ``samples`` and ``seed`` of
            ``gaussian``.

    Returns:
        The data set, with ``.train`` and ``.test`` (each unpacks as ``x, y``) and ``.classes``.

    Raises:
        UnknownNameError: if there is no data set or option of that name.
        DataError: if its files are not found, incomplete, damaged, or not the official ones.

    >>> data = load("digits")
    >>> x, y = data.train
    >>> x.shape, y.shape, len(data.classes)
    (torch.Size([1438, 1, 8, 8]), torch.Size([1438]), 10)
    """
    loader = DATASETS[name]
    accepted = set(inspect.signature(loader).parameters)
    for option in options:
        if option not in accepted:
            raise unknown_name(f"{name} option", option, accepted - {"root", "verify"})
    location = {"root": root, "verify": verify}
    return loader(**{key: location[key] for key in location if key in accepted}, **options)
