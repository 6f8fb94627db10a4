"""The 1,797 handwritten digits that come with scikit-learn: no file, no network."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.data.catalogue import DATASETS
from normscope.data.dataset import Dataset, Split
from normscope.data.standardize import standardized


@DATASETS.register
def digits() -> Dataset:
    """Handwritten digits of 8 x 8 pixels, embedded: 1438 to train on, 359 to test on.

    The split is a rule, not a draw, so that no version of a random generator can change it: of
    the samples of each class, in the order scikit-learn gives them, the third of every five is a
    test sample.

    Returns:
        Images (samples, 1, 8, 8) and labels 0 to 9.
    """
    from sklearn.datasets import load_digits  # here: importing it takes a second

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[:, None]  # whole numbers from 0 to 16
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    in_test = held_out(bunch.target)
    train, test = standardized(images[~in_test], images[in_test])
    chosen = torch.from_numpy(in_test)
    return Dataset(
        name="digits",
        train=Split(torch.from_numpy(train), labels[~chosen]),
        test=Split(torch.from_numpy(test), labels[chosen]),
        classes=tuple("0123456789"),
    )


def held_out(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which samples belong to the test split: the third of every five of each class.

    >>> held_out(np.array([7, 7, 1, 7, 1, 1, 7])).tolist()
    [False, False, False, True, False, True, False]
    """
    result = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        result[np.flatnonzero(labels == label)[2::5]] = True
    return result
