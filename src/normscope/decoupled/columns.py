"""Mean and variance of columns, dense or sparse, without cancellation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

__all__ = ["column_centres", "column_variances", "varying_columns"]

Array = NDArray[np.float64]


def _ends(inputs: Any) -> tuple[Array, Array]:
    """Least and largest entry of each column."""
    if sparse.issparse(inputs):
        least, largest = inputs.min(axis=0), inputs.max(axis=0)
        return least.toarray().ravel(), largest.toarray().ravel()
    return inputs.min(axis=0), inputs.max(axis=0)


def varying_columns(inputs: Any) -> NDArray[np.bool_]:
    """Whether each column has more than one value.

    >>> varying_columns(np.array([[1.0, 2.0], [1.0, 3.0]]))
    array([False,  True])
    """
    least, largest = _ends(inputs)
    return np.asarray(least != largest)


def column_centres(inputs: Any, weights: Array) -> Array:
    """The weighted mean of each column; exact where a column has one value.

    Args:
        inputs: (samples, features), dense or sparse.
        weights: of the samples, with sum one.

    Returns:
        (features,).

    >>> column_centres(np.full((3, 1), 0.1), np.full(3, 1 / 3)).item()
    0.1
    """
    least, largest = _ends(inputs)
    means = np.clip(np.asarray(inputs.T @ weights), least, largest)
    if not sparse.issparse(inputs):  # a second pass takes back the rounding of the first
        means = means + (inputs - means).T @ weights
    return np.asarray(np.where(least == largest, least, means))


def column_variances(inputs: Any, centres: Array, weights: Array) -> Array:
    """The weighted mean square of each column about its centre, in a second pass.

    Args:
        inputs: (samples, features), dense or sparse.
        centres: (features,).
        weights: of the samples, with sum one.

    Returns:
        (features,).

    >>> column_variances(np.array([[1e9 - 1], [1e9 + 1]]), np.array([1e9]), np.full(2, 0.5)).item()
    1.0
    """
    if not sparse.issparse(inputs):
        return np.asarray(np.square(inputs - centres).T @ weights)
    stored = sparse.csc_array(inputs, copy=True)
    stored.sum_duplicates()
    counts = np.diff(stored.indptr)
    masses = weights[stored.indices]
    columns = np.repeat(np.arange(stored.shape[1]), counts)
    about = masses * (stored.data - centres[columns]) ** 2
    kept = np.bincount(columns, about, stored.shape[1])
    mass = np.bincount(columns, masses, stored.shape[1])
    # a column with every entry stored has no zeros, whatever the rounding of its weights says
    zeros = np.where(counts == stored.shape[0], 0.0, np.maximum(1 - mass, 0.0))
    return np.asarray(kept + zeros * centres**2)
