"""Standardised images: mean 0, variance 1 per channel by the training split's constants."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

_LEVELS = np.arange(256)


def standardized(train: Pixels, test: Pixels) -> tuple[Floats, Floats]:
    r"""Both splits as float32, standardised per channel by the training split's constants.

    .. math:: (x - \mu_c) / \sigma_c

    A byte has 256 values, so the constants come exactly from a histogram, and the map is a table
    of 256 entries per channel, each rounded once from double precision. A channel that is
    constant over the training split is only centred.

    Args:
        train: images (samples, channels, height, width).
        test: images of the same channels.

    Returns:
        The two splits, in the order of the arguments.

    >>> train = np.array([[[[0, 2]]], [[[2, 0]]]], dtype=np.uint8)
    >>> standardized(train, train + np.uint8(1))[1].ravel().tolist()
    [0.0, 2.0, 2.0, 0.0]
    """
    tables = [_table(train[:, channel]) for channel in range(train.shape[1])]
    return _applied(tables, train), _applied(tables, test)


def _table(pixels: Pixels) -> Floats:
    counts = np.zeros(256, dtype=np.int64)
    for block in np.array_split(pixels, max(1, len(pixels) // 1000)):  # bincount widens to int64
        counts += np.bincount(block.ravel(), minlength=256)
    total = counts.sum()
    mean = (counts * _LEVELS).sum() / total
    variance = (counts * (_LEVELS - mean) ** 2).sum() / total
    deviation = np.sqrt(variance) if variance > 0 else 1.0
    return np.asarray((_LEVELS - mean) / deviation, dtype=np.float32)


def _applied(tables: list[Floats], images: Pixels) -> Floats:
    result = np.empty(images.shape, dtype=np.float32)
    for channel, table in enumerate(tables):
        result[:, channel] = table[images[:, channel]]
    return result
