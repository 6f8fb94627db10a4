from __future__ import annotations

import numpy as np
import pytest

from normscope.errors import InputError
from normscope.results.filling import fillable


@pytest.mark.parametrize("dtype", ["f2", ">f4", "f8", "c8", "i1", "u8", "?", "M8[s]", "m8[ns]"])
def test_hole_is_not_equal_to_itself(dtype: str) -> None:
    holding, hole = fillable(np.dtype(dtype))
    values = np.full(2, hole, holding)
    assert (values != values).all()
    assert np.dtype(dtype).kind in "biu" or holding == np.dtype(dtype)


@pytest.mark.parametrize(("dtype", "empty"), [("U3", ""), ("S3", b"")])
def test_hole_of_a_text_is_empty(dtype: str, empty: object) -> None:
    holding, hole = fillable(np.dtype(dtype))
    assert np.full(1, hole, holding).tolist() == [empty]


def test_structured_values_have_no_hole() -> None:
    with pytest.raises(InputError, match="nothing that stands for a missing one"):
        fillable(np.dtype([("a", "i4")]))
