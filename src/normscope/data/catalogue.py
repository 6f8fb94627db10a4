"""The data sets by name, and the one verb that loads them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from normscope.data.dataset import Dataset
from normscope.registry import Registry, unknown_name

DATASETS: Registry[Callable[..., Dataset]] = Registry(
    "dataset",
    modules=(
        "normscope.data.digits",
        "normscope.data.mnist",
        "normscope.data.cifar10",
        "normscope.data.gaussian",
    ),
)
"""The loaders of the data sets by name."""


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    verify: bool = True,
    **options: Any,
) -> Dataset:
    """The data set of that name, in memory or mapped into it, ready for training.

    Images come standardised to mean 0 and variance 1 per channel, by the constants of the training
    split. MNIST and CIFAR-10 are looked for in ``root`` and nowhere else if it is given; otherwise
    in ``$NORMSCOPE_DATA``, in the user cache, and last at the official places on the network.
    Their tensors are mapped copy-on-write from a cache of parsed arrays (MNIST 220 MB, CIFAR-10
    740 MB of the user cache): writing to a tensor never reaches the file.

    Args:
        name: ``digits``, ``mnist``, ``cifar10`` or ``gaussian``.
        root: the folder that holds the files; embedded and generated data do not need it.
        verify: require the official content by its digest; False admits a variant of your own
            that has the same form.
        **options: further options of that data set, such as ``samples`` and ``seed`` of
            ``gaussian``.

    Returns:
        The data set, with ``.train`` and ``.test`` (each unpacks as ``x, y``) and ``.classes``.

    Raises:
        UnknownNameError: if there is no data set or option of that name.
        DataError: if its files are nowhere, incomplete, damaged, or not the official ones.

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
    places = {"root": root, "verify": verify}
    return loader(**{key: places[key] for key in places if key in accepted}, **options)
