from __future__ import annotations

import io
import json
import zlib
from typing import Any

import numpy as np
import pytest
import xarray as xr

from normscope.errors import ArgumentTypeError
from normscope.results import Store
from normscope.results.codec import encode, to_raw


def round_trip(dataset: xr.Dataset) -> xr.Dataset:
    with Store(":memory:") as store:
        return store.compute("demo", {}, 0, lambda: dataset)


def assert_same_bits(found: xr.Dataset, expected: xr.Dataset) -> None:
    assert list(found.data_vars) == list(expected.data_vars)
    assert list(found.coords) == list(expected.coords)
    assert dict(found.sizes) == dict(expected.sizes)
    for name, variable in expected.variables.items():
        other = found.variables[name]
        assert other.dims == variable.dims
        assert other.dtype == variable.dtype
        assert other.dtype.byteorder == variable.dtype.byteorder
        assert other.values.tobytes() == variable.values.tobytes()
    assert found.identical(expected)


PAYLOAD = np.array([0x7FF8DEADBEEF0001, 0xFFF0000000000001], np.uint64).view(np.float64)
ARRAYS = {
    "float64": np.array([1.5, -0.0, np.inf, np.nan]),
    "nan payload": PAYLOAD,
    "float16": np.array([1, np.nan], np.float16),
    "big-endian": np.array([1.0, 2.0], ">f8"),
    "big-endian int": np.array([1, 2], ">i2"),
    "int64": np.array([-(2**63), 2**63 - 1]),
    "uint8": np.arange(256, dtype=np.uint8),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j, complex(np.nan, -0.0)], np.complex64),
    "text": np.array(["", "a", "größer", "x\n"]),
    "bytes": np.array([b"", b"abc"]),
    "time": np.array(["2020-01-01", "NaT"], "datetime64[ns]"),
    "seconds": np.array([1, 2], "timedelta64[s]"),
    "structured": np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "structured, wide": np.zeros(2, [(f"{'name' * 20}{index}", "f8") for index in range(800)]),
    "structured, foreign": np.zeros(2, [("größer \u4e2d", "f8"), ("b", "i4")]),
    "empty": np.empty((0, 3), np.float32),
    "scalar": np.array(3.25),
    "scalar time": np.array("2020-01-01T12", "datetime64[s]"),
    "scalar text": np.array("one"),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(20.0)[::3],
    "large": np.random.default_rng(0).normal(size=(50, 60)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_array_comes_back_to_the_bit(name: str) -> None:
    array = ARRAYS[name]
    dims = [f"dim_{index}" for index in range(array.ndim)]
    dataset = xr.Dataset({"values": (dims, array, {"unit": "m"})})
    assert_same_bits(round_trip(dataset), dataset)


INDEXABLE = [name for name, array in ARRAYS.items() if array.ndim == 1]


@pytest.mark.parametrize("name", [n for n in INDEXABLE if n != "float16" and "structured" not in n])
def test_index_comes_back_to_the_bit(name: str) -> None:
    values = ARRAYS[name]
    dataset = xr.Dataset({"loss": ("x", np.zeros(len(values)))}, coords={"x": values})
    assert_same_bits(round_trip(dataset), dataset)


def test_whole_dataset_comes_back() -> None:
    dataset = xr.Dataset(
        {"b": (("step", "layer"), np.ones((2, 3))), "a": ((), 1), "no": ("step", [True, False])},
        coords={
            "layer": ("layer", ["conv", "fc", "out"], {"long_name": "layer"}),
            "step": [0, 50],
            "depth": ("layer", [1, 2, 3]),
            "seed": 4,
        },
        attrs={"title": "t"},
    )
    assert_same_bits(round_trip(dataset), dataset)
    assert_same_bits(round_trip(xr.Dataset()), xr.Dataset())


ATTRIBUTES: dict[str, Any] = {
    "text": "größer",
    "number": 1,
    "large": 2**80,
    "real": 0.1,
    "negative zero": -0.0,
    "nan": float("nan"),
    "infinite": float("-inf"),
    "switch": True,
    "nothing": None,
    "list": [1, 2.5, "x", [True, None]],
    "tuple": (1, (2, float("inf"))),
    "mapping": {"type": "float", "value": {"b": 1, "a": [2]}},
    "array": np.arange(3, dtype=np.int16),
    "scalar": np.float32(0.1),
    "time": np.datetime64("2020-01-01"),
    "text array": np.array(["a", "bc"]),
}


def described(value: Any) -> Any:
    """Type and content, with NaN equal to itself."""
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.tobytes()
    if isinstance(value, list | tuple):
        return type(value), [described(item) for item in value]
    if isinstance(value, dict):
        return dict, [(name, described(item)) for name, item in value.items()]
    return type(value), repr(value)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attribute_comes_back_with_its_type(name: str) -> None:
    dataset = xr.Dataset(
        {"v": ("x", [1.0], {name: ATTRIBUTES[name]})}, attrs={name: ATTRIBUTES[name]}
    )
    found = round_trip(dataset)
    assert described(found.attrs) == described(dataset.attrs)
    assert described(found["v"].attrs) == described(dataset["v"].attrs)


def test_content_is_npy_and_strict_json() -> None:
    dataset = xr.Dataset({"v": ("x", [1.0, 2.0])}, attrs={"a": float("nan")})
    content = encode(to_raw(dataset))
    json.loads(content.layout, parse_constant=lambda name: pytest.fail(name))
    array = np.load(io.BytesIO(zlib.decompress(content.blobs[0])), allow_pickle=False)
    assert array.tolist() == [1.0, 2.0]


def test_arrays_that_come_back_can_be_changed() -> None:
    found = round_trip(xr.Dataset({"v": ("x", [1.0, 2.0])}))
    found["v"][0] = 5
    assert found["v"].values.tolist() == [5, 2]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (xr.Dataset({"v": ("x", np.array(["a", 1], object))}), "'v' has the dtype object"),
        (
            xr.Dataset(coords={"x": ("x", np.array([{}], object))}),
            "'x' has the dtype object, which only pickle could keep",
        ),
        (xr.Dataset({"v": ("x", np.array(["a"], np.dtypes.StringDType()))}), "'v' has the dtype"),
        (xr.Dataset({"v": ((), 1)}, attrs={"a": object()}), "attribute 'a' of the dataset is of"),
        (xr.Dataset({"v": ((), 1, {"a": {1}})}), "attribute 'a' of 'v' is of type set"),
        (xr.Dataset(attrs={"a": np.array([None])}), "an attribute of the dataset has the dtype"),
        (xr.Dataset({1: ((), 1)}), "the name 1 of a variable, dimension or attribute"),
        (xr.Dataset({"v": ((2,), [1])}), "the name 2 of a variable"),
        (xr.Dataset(attrs={3: 1}), "the name 3 of"),
        (
            xr.Dataset({"v": (("x", "y"), [[1]])}, {"x": [1], "y": ["a"]}).stack(z=("x", "y")),
            "belongs to a MultiIndex",
        ),
        (xr.DataArray([1]), r"must be an xarray.Dataset, got DataArray"),
    ],
)
def test_what_only_pickle_could_keep_is_refused(dataset: xr.Dataset, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        round_trip(dataset)


def test_texts_that_xarray_holds_otherwise_come_back_as_plain_ones() -> None:
    dataset = xr.Dataset({"v": ((), 1.0)}).expand_dims(norm=["none", "batch"])
    back = round_trip(dataset)  # of the dtype of what xarray makes here, this pandas decides
    assert back["norm"].values.tolist() == ["none", "batch"]
    assert back["norm"].dtype.kind == "U"


def test_digest_tells_every_change() -> None:
    content = encode(to_raw(xr.Dataset({"v": ("x", [1.0, 2.0]), "w": ((), 1)})))
    first, second = content.blobs
    changed = [
        content.digest("other", 0),
        content.digest("key", 1),
        type(content)(content.layout + " ", content.blobs).digest("key", 0),
        type(content)(content.layout, (second, first)).digest("key", 0),
        type(content)(content.layout, (first,)).digest("key", 0),
        type(content)(content.layout, (first + second,)).digest("key", 0),
        type(content)(content.layout, (first[:-1], first[-1:] + second)).digest("key", 0),
    ]
    assert len({content.digest("key", 0), *changed}) == 8


def test_texts_held_as_objects_become_texts_of_fixed_width() -> None:
    given = xr.Dataset({"v": ("norm", [1.0, 2.0])}, {"norm": np.array(["l1", "batch"], object)})
    back = round_trip(given)
    assert back["norm"].dtype == np.dtype("<U5")
    assert back["norm"].values.tolist() == ["l1", "batch"]
