from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from normscope.errors import InputError
from normscope.results import Store


def joined(*datasets: xr.Dataset) -> xr.Dataset:
    with Store(":memory:") as store:
        key = store.add("demo", {}, 0)
        store.start(key)
        for dataset in datasets:
            store.append(key, dataset)
        return store.get(key).dataset


def steps(*values: int, **variables: object) -> xr.Dataset:
    data = {"loss": ("step", [1.0 * value for value in values]), **variables}
    return xr.Dataset(data, coords={"step": list(values)})


def test_join_is_that_of_xarray() -> None:
    random = np.random.default_rng(0)
    chunks = [
        xr.Dataset(
            {
                "band": (("distance", "step", "layer"), random.normal(size=(2, size, 3))),
                "fixed": ("layer", [1.0, 2.0, 3.0]),
            },
            coords={"step": np.arange(size) + 10 * size, "layer": list("abc"), "seed": 0},
        )
        for size in (1, 3, 2)
    ]
    expected = xr.concat(chunks, "step", data_vars="minimal", coords="minimal", compat="equals")
    assert joined(*chunks).identical(expected)


def test_join_keeps_dtype_and_byte_order() -> None:
    chunk = xr.Dataset({"v": ("step", np.array([1], ">i2"))})
    found = joined(chunk, chunk)
    assert found["v"].dtype.str == ">i2"
    assert found["v"].values.tolist() == [1, 1]


def test_join_takes_the_longest_text() -> None:
    found = joined(steps(0, name=("step", ["ab"])), steps(1, name=("step", ["longer"])))
    assert found["name"].values.tolist() == ["ab", "longer"]


def test_variable_left_out_has_holes() -> None:
    found = joined(
        steps(0, curvature=("step", [2.0]), count=("step", [3])),
        steps(1, 2),
        steps(3, curvature=("step", [4.0]), late=("step", [True])),
    )
    np.testing.assert_array_equal(found["curvature"], [2, np.nan, np.nan, 4])
    np.testing.assert_array_equal(found["count"], [3, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(found["late"], [np.nan, np.nan, np.nan, 1])
    assert found["step"].values.tolist() == [0, 1, 2, 3]


def test_attributes_of_the_dataset_are_the_last_ones() -> None:
    found = joined(steps(0).assign_attrs(a=1, b=1), steps(1).assign_attrs(b=2))
    assert found.attrs == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "other",
    [
        steps(1, loss=("step", np.float32([1]))),
        steps(1, band=(("layer", "step"), [[1.0], [2.0]])),
        steps(1, band=(("step", "layer"), [[1.0, 2.0, 3.0]])),
        steps(1, layers=("layer", ["a", "c"])),
        steps(1).assign_coords(seed=1),
        steps(1, seed=((), 0)),
    ],
    ids=["dtype", "dims", "size", "values without steps", "scalar", "kind"],
)
def test_chunk_of_another_form_is_refused(other: xr.Dataset) -> None:
    first = steps(0, band=(("step", "layer"), [[1.0, 2.0]]), layers=("layer", ["a", "b"]))
    with pytest.raises(InputError, match="does not fit the chunks before it"):
        joined(first.assign_coords(seed=0), other)


def test_chunk_needs_steps() -> None:
    with pytest.raises(InputError, match="needs a variable with the dimension 'step'"):
        joined(xr.Dataset({"loss": ((), 1.0)}))


@pytest.mark.parametrize("dtype", ["f2", ">f4", "f8", "c8", "i1", "u8", "?", "M8[s]", "m8[ns]"])
def test_fill_value_is_not_equal_to_itself(dtype: str) -> None:
    values = joined(steps(0, v=("step", np.zeros(1, dtype))), steps(1, 2))["v"].values
    assert values[0] == values[0]
    assert (values[1:] != values[1:]).all()
    assert values.dtype == (float if np.dtype(dtype).kind in "biu" else np.dtype(dtype))


@pytest.mark.parametrize(("dtype", "empty"), [("U3", ""), ("S3", b"")])
def test_fill_value_of_a_string_is_empty(dtype: str, empty: object) -> None:
    found = joined(steps(0, v=("step", np.array(["abc"], dtype))), steps(1))
    assert found["v"].values[1:].tolist() == [empty]


def test_structured_values_have_no_fill_value() -> None:
    chunks = [steps(0, v=("step", np.zeros(1, [("a", "i4")]))), steps(1)]
    with pytest.raises(InputError, match="no value for missing cells"):
        joined(*chunks)
