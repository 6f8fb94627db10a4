"""What stands where nothing was measured."""

from __future__ import annotations

from typing import Any

import numpy as np

from normscope.errors import InputError

__all__ = ["fillable"]


def fillable(dtype: np.dtype) -> tuple[np.dtype, Any]:
    """The dtype that can hold a hole, and the value that stands for one.

    Floats, complex numbers and times have NaN or NaT of their own; integers and truth values become
    float64; a text is left empty.

    Raises:
        InputError: if the dtype has no such value, as structured ones.

    >>> fillable(np.dtype("float32")), fillable(np.dtype("int8"))
    ((dtype('float32'), nan), (dtype('float64'), nan))
    """
    if dtype.kind in "fc":
        return dtype, np.nan
    if dtype.kind in "biu":
        return np.dtype(float), np.nan
    if dtype.kind in "mM":
        return dtype, np.array("NaT", dtype)
    if dtype.kind in "US":
        return dtype, dtype.type()
    raise InputError(
        f"values of dtype {dtype} have nothing that stands for a missing one; store them as "
        "numbers, or combine records that all have them."
    )
