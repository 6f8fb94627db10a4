from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import normscope
from normscope.errors import ArgumentTypeError, InputError
from normscope.report.narrative import factor_of
from normscope.results import Store, record_key
from normscope.results.record import canonical_json, training_settings


class Norm(StrEnum):
    BATCH = "batch"


def test_key_is_the_hash_of_the_documented_json() -> None:
    identity = {
        "experiment": "wei2018/figure2 é",
        "parameters": {"a": [1, 2.5, None], "b": {"x": True, "w": 'quote " and \\'}},
        "revision": 3,
        "seed": 7,
        "version": normscope.__version__,
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    parameters = {"b": {"w": 'quote " and \\', "x": True}, "a": (1, 2.5, None)}
    assert (
        record_key("wei2018/figure2 é", parameters, seed=7, revision=3)
        == hashlib.sha256(text.encode()).hexdigest()
    )


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int8(3), 3),
        (np.bool_(True), True),
        (np.str_("batch"), "batch"),
        (Norm.BATCH, "batch"),
        (np.array([1, 2]), [1, 2]),
        (np.array(2.5), 2.5),
        ((1, (2, 3)), [1, [2, 3]]),
        (Path("data/mnist"), "data/mnist"),
        ({"b": 1, "a": np.int64(2)}, {"a": 2, "b": 1}),
    ],
)
def test_equal_parameters_have_one_key(value: Any, same: Any) -> None:
    assert record_key("e", {"p": value}, 0) == record_key("e", {"p": same}, 0)


def test_any_change_gives_another_key() -> None:
    keys = [
        record_key("e", {"p": 1}, 0, 1, "0.1.0"),
        record_key("f", {"p": 1}, 0, 1, "0.1.0"),
        record_key("e", {"p": 2}, 0, 1, "0.1.0"),
        record_key("e", {"q": 1}, 0, 1, "0.1.0"),
        record_key("e", {"p": 1.0}, 0, 1, "0.1.0"),
        record_key("e", {"p": True}, 0, 1, "0.1.0"),
        record_key("e", {"p": "1"}, 0, 1, "0.1.0"),
        record_key("e", {"p": [1]}, 0, 1, "0.1.0"),
        record_key("e", {"p": None}, 0, 1, "0.1.0"),
        record_key("e", {}, 0, 1, "0.1.0"),
        record_key("e", {"p": 1}, 1, 1, "0.1.0"),
        record_key("e", {"p": 1}, 0, 2, "0.1.0"),
        record_key("e", {"p": 1}, 0, 1, "0.2.0"),
        record_key("e", {"p": 0.1}, 0, 1, "0.1.0"),
        record_key("e", {"p": np.nextafter(0.1, 1)}, 0, 1, "0.1.0"),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -np.inf, np.float32("nan")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"parameters\['p'\]\[1\] is -?(nan|inf), which JSON"):
        record_key("e", {"p": [1, value]}, 0)


@pytest.mark.parametrize(
    "value", [{1, 2}, b"bytes", 1j, object(), np.longdouble(1), np.datetime64("2020"), {1: 2}]
)
def test_types_without_json_are_refused(value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"parameters\['p'\]"):
        record_key("e", {"p": value}, 0)


@pytest.mark.parametrize("name", ["seed", "state", "experiment"])
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"cannot be called '{name}'"):
        record_key("e", {name: 1}, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, {}, 0, 1), "experiment must be a str, got int"),
        (("e", [1], 0, 1), "parameters must be a dict"),
        (("e", {}, 0.5, 1), "seed must be an int, got float"),
        (("e", {}, True, 1), "seed must be an int, got bool"),
        (("e", {}, 0, "1"), "revision must be an int, got str"),
    ],
)
def test_wrong_types_are_told(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        record_key(*arguments)


def test_seed_must_fit_the_database() -> None:
    for seed in (2**63 - 1, -(2**63)):
        with Store(":memory:") as store:
            store.add("e", {}, seed)
            assert [record.seed for record in store.select()] == [seed]
    for seed in (2**63, -(2**63) - 1):
        with pytest.raises(InputError, match="seed must fit 64 bits"):
            record_key("e", {}, seed)


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InputError, match="not valid Unicode"):
        record_key("e", {"p": "\ud800"}, 0)


def test_canonical_json_writes_floats_exactly() -> None:
    assert canonical_json([0.1, 1e-300, 1e22, -0.0]) == "[0.1,1e-300,1e+22,-0.0]"


@pytest.mark.parametrize("settings", ["from elsewhere", "[1]", "3", 7, ""])
def test_settings_from_elsewhere_are_none(settings):
    found = xr.Dataset(attrs={"settings": settings})
    assert training_settings(found) == {}
    assert factor_of([found]) is None


def test_settings_are_those_of_the_trainings():
    found = xr.Dataset(attrs={"settings": '{"divergence_factor": 50, "norm": "batch"}'})
    assert training_settings(found)["norm"] == "batch"
    assert factor_of([found, found]) == 50.0


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


WRAPS: list[Callable[[Any], Any]] = [
    lambda value: [value],
    lambda value: (value, 2),
    lambda value: {"a": value},
]


@pytest.mark.parametrize("wrap", WRAPS)
def test_what_is_stored_can_be_read_however_deep(wrap: Callable[[Any], Any]) -> None:
    value = nested(98, wrap)
    with Store(":memory:") as store:
        found = store.compute("demo", {"a": value}, 0, lambda: xr.Dataset(attrs={"a": value}))
        assert found.attrs["a"] == value
        assert len(store.select("demo", a=value)) == 1


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("depth", [101, 5000])
def test_deeper_nesting_is_refused_in_one_sentence(wrap: Callable[[Any], Any], depth: int) -> None:
    value = nested(depth, wrap)
    with Store(":memory:") as store:
        with pytest.raises(InputError, match="nested more than 100 deep; use fewer levels"):
            store.add("demo", {"a": value}, 0)
        with pytest.raises(InputError, match="nested more than 100 deep; use fewer levels"):
            store.compute("demo", {}, 0, lambda: xr.Dataset(attrs={"a": value}))


def test_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InputError, match="nested more than 100 deep"):
        record_key("demo", {"a": endless}, 0)


def test_integer_of_too_many_digits_is_refused() -> None:
    with Store(":memory:") as store:
        with pytest.raises(InputError, match="use numbers of fewer digits"):
            store.add("demo", {"a": 10**5000}, 0)
        with pytest.raises(InputError, match="use numbers of fewer digits"):
            store.compute("demo", {}, 0, lambda: xr.Dataset(attrs={"a": 10**5000}))
