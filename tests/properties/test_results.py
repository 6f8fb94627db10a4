"""The store gives back what it was given, and keys tell apart what differs."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import xarray as xr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from normscope.results import Store, record_key

NAMES = st.text(min_size=1, max_size=8)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
RESERVED = {"seed", "state", "experiment"}
PARAMETERS = st.dictionaries(NAMES.filter(lambda name: name not in RESERVED), PLAIN, max_size=5)
SEEDS = st.integers(-(2**63) + 1, 2**63 - 1)
DTYPES = (
    arrays.floating_dtypes(endianness="?")
    | arrays.integer_dtypes(endianness="?")
    | arrays.unsigned_integer_dtypes(endianness="?")
    | arrays.boolean_dtypes()
    | arrays.complex_number_dtypes(endianness="?")
    | arrays.unicode_string_dtypes(max_len=5)
    | arrays.datetime64_dtypes(max_period="s", min_period="ns")
)
ATTRIBUTES = st.dictionaries(NAMES, PLAIN | st.floats(), max_size=3)


@st.composite
def datasets(draw: st.DrawFn) -> xr.Dataset:
    """Variables over shared dimensions, some with labels; any bits, NaN payloads among them."""
    sizes = draw(st.dictionaries(NAMES, st.integers(0, 4), max_size=3))
    dataset = xr.Dataset(attrs=draw(ATTRIBUTES))
    for dim, size in sizes.items():
        if draw(st.booleans()):
            labels = draw(arrays.arrays(draw(st.sampled_from(["i8", "f8", "<U3"])), size))
            dataset = dataset.assign_coords({dim: (dim, labels, draw(ATTRIBUTES))})
    for name in draw(st.sets(NAMES.filter(lambda name: name not in sizes), max_size=4)):
        dims = draw(st.lists(st.sampled_from(sorted(sizes)), unique=True)) if sizes else []
        shape = tuple(sizes[dim] for dim in dims)
        values = draw(arrays.arrays(draw(DTYPES), shape))
        variable = xr.Variable(dims, values, draw(ATTRIBUTES))
        put = dataset.assign_coords if draw(st.booleans()) else dataset.assign
        dataset = put({name: variable})
    return dataset


def bits(dataset: xr.Dataset) -> Any:
    return (
        list(dataset.data_vars),
        list(dataset.coords),
        repr(dataset.attrs),
        [
            (name, each.dims, each.dtype.str, each.values.tobytes(), repr(each.attrs))
            for name, each in dataset.variables.items()
        ],
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(datasets())
def test_stored_dataset_comes_back_to_the_bit(dataset: xr.Dataset) -> None:
    before = bits(dataset)
    with Store(":memory:") as store:
        key = store.add("property", {}, 0)
        store.start(key)
        store.finish(key, dataset)
        found = store.get(key).dataset
    assert sorted(map(repr, bits(found)[3])) == sorted(map(repr, before[3]))
    assert bits(found)[:3] == before[:3]
    assert bits(dataset) == before


def shuffled(value: Any) -> Any:
    """The same with every dict in another order and every list a tuple."""
    if isinstance(value, dict):
        return {name: shuffled(item) for name, item in reversed(value.items())}
    if isinstance(value, list):
        return tuple(map(shuffled, value))
    return value


@given(NAMES, PARAMETERS, SEEDS)
def test_key_does_not_depend_on_order_or_process(
    experiment: str, parameters: dict[str, Any], seed: int
) -> None:
    key = record_key(experiment, parameters, seed, 1)
    assert key == record_key(experiment, shuffled(parameters), seed, 1)
    assert key == record_key(experiment, copy.deepcopy(parameters), np.int64(seed), 1)
    assert key == record_key(experiment, json.loads(json.dumps(parameters)), seed, 1)


@given(
    st.tuples(NAMES, PARAMETERS, SEEDS, st.integers(0, 3), NAMES),
    st.tuples(NAMES, PARAMETERS, SEEDS, st.integers(0, 3), NAMES),
    st.integers(0, 4),
)
def test_any_change_gives_another_key(
    first: tuple[Any, ...], second: tuple[Any, ...], place: int
) -> None:
    changed = (*first[:place], second[place], *first[place + 1 :])
    # by JSON: Python holds 1, 1.0 and True to be equal
    assume(json.dumps(changed, sort_keys=True) != json.dumps(first, sort_keys=True))
    assert record_key(*changed) != record_key(*first)


@settings(max_examples=60, deadline=None)
@given(PARAMETERS, SEEDS)
def test_parameters_come_back_and_are_found(parameters: dict[str, Any], seed: int) -> None:
    with Store(":memory:") as store:
        key = store.add("property", parameters, seed)
        record = store.get(key)
        assert json.dumps(record.parameters, sort_keys=True) == json.dumps(
            parameters, sort_keys=True
        )
        assert record.seed == seed
        assert [found.key for found in store.select("property", seed=seed)] == [key]
        for name, value in parameters.items():
            if name != "self":  # no keyword can be called so
                assert [found.key for found in store.select(**{name: value})] == [key]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.sampled_from(["f4", ">f8", "i2"]))
def test_chunks_are_the_whole(lengths: list[int], dtype: str) -> None:
    values = np.random.default_rng(sum(lengths)).integers(0, 99, (sum(lengths), 3)).astype(dtype)
    whole = xr.Dataset({"v": (("step", "layer"), values)}, coords={"step": np.arange(len(values))})
    with Store(":memory:") as store:
        key = store.add("property", {}, 0)
        store.start(key)
        start = 0
        for length in lengths:
            store.append(key, whole.isel(step=slice(start, start + length)))
            start += length
        running = store.get(key).dataset
        store.finish(key)
        assert bits(running) == bits(store.get(key).dataset) == bits(whole)
