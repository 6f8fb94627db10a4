"""Records combined to one labelled dataset, through the store."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from normscope.errors import InputError, StateError, UnknownNameError
from normscope.results import Store


@pytest.fixture
def store() -> Store:
    return Store(":memory:")


def put(
    store: Store, dataset: xr.Dataset, parameters: dict[str, Any], seed: int = 0, revision: int = 1
) -> None:
    store.compute("demo", parameters, seed, lambda: dataset, revision)


def curve(values: list[float], steps: list[int] | None = None) -> xr.Dataset:
    return xr.Dataset(
        {"loss": ("step", values)}, coords={"step": steps or list(range(len(values)))}
    )


def test_full_grid_is_that_of_xarray(store: Store) -> None:
    random = np.random.default_rng(0)
    rates, norms, seeds, steps = [0.01, 0.1, 1.0], ["none", "batch"], [0, 1], [0, 50]
    expected = xr.Dataset(
        {
            "loss": (
                ("norm", "rate", "seed", "step"),
                random.normal(size=(2, 3, 2, 2)),
                {"unit": "nats"},
            ),
            "final": (("norm", "rate", "seed"), random.normal(size=(2, 3, 2)).astype(np.float32)),
            "count": (("norm", "rate", "seed"), np.arange(12).reshape(2, 3, 2)),
        },
        coords={
            "norm": norms,
            "rate": rates,
            "seed": seeds,
            "step": ("step", steps, {"long_name": "step"}),
            "epoch": ("step", [0.0, 0.5]),
        },
        attrs={"title": "all", "experiment": "demo", "parameters": '{"depth":3}'},
    )
    for norm, rate, seed in itertools.product(norms, reversed(rates), reversed(seeds)):
        cell = expected.sel(norm=norm, rate=rate, seed=seed, drop=True)
        cell.attrs = {"title": "all", "rate": rate}
        put(store, cell, {"rate": rate, "norm": norm, "depth": 3}, seed)
    found = store.to_xarray("demo")
    xr.testing.assert_identical(found, expected)
    assert found["count"].dtype == np.int64
    assert found["final"].dtype == np.float32


def test_missing_cells_have_holes(store: Store) -> None:
    def cell(value: float) -> xr.Dataset:
        return xr.Dataset(
            {
                "loss": ((), np.float32(value)),
                "count": ((), int(value)),
                "ok": ((), True),
                "outcome": ((), "done"),
                "when": ((), np.datetime64("2020-01-01", "s")),
            }
        )

    put(store, cell(1), {"rate": 0.1}, 0)
    put(store, cell(2), {"rate": 0.1}, 1)
    put(store, cell(3), {"rate": 0.2}, 1)
    found = store.to_xarray("demo")
    assert found["loss"].dims == ("rate", "seed")
    np.testing.assert_array_equal(found["loss"], np.float32([[1, 2], [np.nan, 3]]))
    assert found["loss"].dtype == np.float32
    np.testing.assert_array_equal(found["count"], [[1, 2], [np.nan, 3]])
    np.testing.assert_array_equal(found["ok"], [[1, 1], [np.nan, 1]])
    assert found["outcome"].values.tolist() == [["done", "done"], ["", "done"]]
    assert np.isnat(found["when"].values).tolist() == [[False, False], [True, False]]


def test_shorter_runs_are_padded(store: Store) -> None:
    put(store, curve([3.0, 2.0, 1.0], [0, 50, 100]), {"rate": 0.1})
    put(store, curve([3.0, 9.0], [0, 50]), {"rate": 1.0})
    found = store.to_xarray("demo")["loss"].isel(seed=0)
    assert found["step"].values.tolist() == [0, 50, 100]
    np.testing.assert_array_equal(found, [[3, 2, 1], [3, 9, np.nan]])


def test_steps_without_labels_are_padded_at_the_end(store: Store) -> None:
    put(store, xr.Dataset({"loss": ("step", [1.0])}), {"rate": 0.1})
    put(store, xr.Dataset({"loss": ("step", [1.0, 2.0])}), {"rate": 0.2})
    np.testing.assert_array_equal(
        store.to_xarray("demo")["loss"].isel(seed=0), [[1, np.nan], [1, 2]]
    )


def test_other_steps_and_layers_are_aligned_by_label(store: Store) -> None:
    def cell(steps: list[int], layers: list[str], base: float) -> xr.Dataset:
        values = base + np.arange(len(steps) * len(layers)).reshape(len(steps), len(layers))
        return xr.Dataset(
            {"shift": (("step", "layer"), values)}, coords={"step": steps, "layer": layers}
        )

    cells = {3: cell([0, 5], ["z", "a"], 0.0), 4: cell([5, 7], ["z", "b", "a"], 10.0)}
    for depth, dataset in cells.items():
        put(store, dataset, {"depth": depth})
    found = store.to_xarray("demo")
    assert found["step"].values.tolist() == [0, 5, 7]
    assert found["layer"].values.tolist() == ["z", "a", "b"]
    for depth, dataset in cells.items():
        part = found["shift"].sel(depth=depth, seed=0, drop=True)
        xr.testing.assert_equal(part.sel(dataset.coords), dataset["shift"])
        assert int(part.notnull().sum()) == dataset["shift"].size


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([10, 9, 100], [9, 10, 100]),
        ([1, 0.5], [0.5, 1.0]),
        (["none", "batch"], ["none", "batch"]),
        ([True, False], [True, False]),
        ([[2, 3], [1]], ["[2,3]", "[1]"]),
        ([None, 0.1], ["null", "0.1"]),
        ([{"b": 1, "a": 2}, "x"], ['{"a":2,"b":1}', '"x"']),
        ([2**70, 1], [str(2**70), "1"]),
    ],
)
def test_labels_follow_the_values(store: Store, values: list[Any], labels: list[Any]) -> None:
    for position, value in enumerate(values):
        put(store, xr.Dataset({"position": ((), position)}), {"p": value})
    found = store.to_xarray("demo")
    assert found["p"].values.tolist() == labels
    by_label = dict(zip(labels, found["position"].isel(seed=0).values.tolist(), strict=True))
    assert sorted(by_label.values()) == list(range(len(values)))
    if all(isinstance(value, int | float | str) and value in by_label for value in values):
        assert all(by_label[value] == position for position, value in enumerate(values))


def test_parameter_left_out_is_null(store: Store) -> None:
    put(store, curve([1.0]), {"rate": 0.1})
    put(store, curve([2.0]), {"rate": 0.1, "noise": "on"})
    assert store.to_xarray("demo")["noise"].values.tolist() == ["null", '"on"']


def test_conditions_keep_a_part(store: Store) -> None:
    for rate, norm, seed in itertools.product((0.1, 0.2), ("none", "batch"), (0, 1)):
        put(store, curve([rate + seed]), {"rate": rate, "norm": norm}, seed)
    found = store.to_xarray("demo", norm="none", seed=1)
    assert dict(found.sizes) == {"rate": 2, "seed": 1, "step": 1}
    assert found.attrs["parameters"] == '{"norm":"none"}'
    assert found["seed"].values.tolist() == [1]


def test_highest_revision_counts(store: Store) -> None:
    put(store, curve([2.0]), {"rate": 0.1}, revision=2)
    put(store, curve([1.0]), {"rate": 0.1}, revision=1)
    put(store, curve([0.0]), {"rate": 0.2}, revision=1)
    np.testing.assert_array_equal(store.to_xarray("demo")["loss"].squeeze(), [2.0, 0.0])


def test_results_with_their_own_seed_are_not_in_the_way(store: Store) -> None:
    for seed in (0, 1):
        dataset = curve([1.0 + seed]).expand_dims(seed=[seed])
        put(store, dataset.assign_coords(rate=0.1), {"rate": 0.1}, seed)
    put(store, curve([5.0]).assign_coords(rate=0.3, seed=0), {"rate": 0.3})
    found = store.to_xarray("demo")
    assert found["loss"].dims == ("rate", "seed", "step")
    np.testing.assert_array_equal(found["loss"].squeeze("step"), [[1, 2], [5, np.nan]])


def test_coordinate_that_differs_is_kept_for_every_cell(store: Store) -> None:
    for rate in (0.1, 0.2):
        put(store, curve([1.0, 2.0]).assign_coords(time=("step", [0.0, rate])), {"rate": rate})
    found = store.to_xarray("demo")
    assert found.coords["time"].dims == ("rate", "seed", "step")
    assert found["time"].sel(rate=0.2, seed=0).values.tolist() == [0.0, 0.2]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (curve([1.0]), xr.Dataset({"loss": ((), 1.0)}), "'loss' has the dimensions"),
        (curve([1.0]), xr.Dataset({"loss": ("step", [1.0])}), "some have none"),
        (
            xr.Dataset({"v": ((), "text")}),
            xr.Dataset({"v": ((), 1.0)}),
            "'v' has the dtypes <U4, float64",
        ),
        (
            xr.Dataset({"v": ("rate", [1.0, 2.0])}),
            xr.Dataset({"v": ("rate", [1.0, 2.0])}),
            "a dimension 'rate' of its own",
        ),
        (
            xr.Dataset({"rate": ((), 1.0)}),
            xr.Dataset({"rate": ((), 2.0)}),
            "have a variable 'rate', which is also the name of a setting",
        ),
        (curve([1.0, 2.0], [1, 1]), curve([1.0], [1]), "along 'step' and some repeat"),
    ],
)
def test_results_that_do_not_belong_together_are_told(
    store: Store, first: xr.Dataset, second: xr.Dataset, message: str
) -> None:
    put(store, first, {"rate": 0.1})
    put(store, second, {"rate": 0.2})
    with pytest.raises(InputError, match=message):
        store.to_xarray("demo")


def test_repeated_labels_are_kept_if_the_same_everywhere(store: Store) -> None:
    for rate in (0.1, 0.2):
        put(store, curve([1.0, 2.0], [1, 1]), {"rate": rate})
    assert store.to_xarray("demo")["loss"].sizes["step"] == 2


def test_nothing_found_says_what_there_is(store: Store) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown experiment 'demo'\. Choices: none"):
        store.to_xarray("demo")
    key = store.add("demo", {"rate": 0.1}, 0)
    with pytest.raises(UnknownNameError, match="did you mean 'demo'"):
        store.to_xarray("dem")
    store.start(key)
    store.add("demo", {"rate": 0.2}, 0)
    with pytest.raises(
        StateError, match=r"no record of 'demo' has a whole result yet \(1 running, 1 pe"
    ):
        store.to_xarray("demo")
    with pytest.raises(InputError, match=r"has \{'rate': 0.3\}; there are rate: 0.1, 0.2\."):
        store.to_xarray("demo", rate=0.3)
    with pytest.raises(InputError, match=r"there are seed: 0\."):
        store.to_xarray("demo", seed=4)


def search(store: Store, records: int) -> list[dict[str, Any]]:
    """A random search over four settings, one of which has few values."""
    random = np.random.default_rng(0)
    settings = [
        {**dict(zip("abc", random.uniform(size=3), strict=True)), "norm": random.choice(["x", "y"])}
        for _ in range(records)
    ]
    for seed, each in enumerate(settings):
        put(store, curve([each["a"], each["b"]], [0, 10]), {**each, "depth": 3}, seed)
    return settings


def test_random_search_is_a_list_of_records(store: Store) -> None:
    settings = search(store, 300)  # a grid of 300 ** 4 * 2 cells
    found = store.to_xarray("demo")
    assert dict(found.sizes) == {"record": 300, "step": 2}
    assert found["loss"].dims == ("record", "step")
    assert found["seed"].values.tolist() == list(range(300))
    assert found["norm"].values.tolist() == [each["norm"] for each in settings]
    for name in "abc":
        assert found[name].dims == ("record",)
        assert found[name].values.tolist() == [each[name] for each in settings]
    np.testing.assert_array_equal(found["loss"].isel(step=1), found["b"])
    assert found.attrs["parameters"] == '{"depth":3}'


def test_list_of_records_goes_to_files_and_tables(store: Store, tmp_path: Path) -> None:
    search(store, 20)
    table = store.to_dataframe("demo").reset_index()
    assert len(table) == 40
    assert set(table) == {"record", "step", "loss", "a", "b", "c", "norm", "seed"}
    store.to_netcdf(tmp_path / "search.nc", "demo")
    with xr.open_dataset(tmp_path / "search.nc", engine="scipy") as read:
        xr.testing.assert_equal(read.load(), store.to_xarray("demo"))


def test_form_does_not_depend_on_how_far_a_sweep_has_come(store: Store) -> None:
    """The diagonal of a grid is scattered, but not if the rest of the grid is planned."""
    for rate, gamma in itertools.product(range(8), range(8)):
        store.add("demo", {"rate": rate, "gamma": gamma}, 0)
    for each in range(8):
        put(store, curve([1.0]), {"rate": each, "gamma": each})
    assert store.to_xarray("demo")["loss"].dims == ("gamma", "rate", "seed", "step")


def test_records_of_different_lengths_are_padded_in_a_list(store: Store) -> None:
    for each in range(9):
        put(store, curve([1.0] * (each % 3 + 1)), {"rate": each, "gamma": each})
    found = store.to_xarray("demo")["loss"]
    assert found.notnull().sum("step").values.tolist() == [1, 2, 3] * 3


def test_labels_without_a_common_dtype_are_refused(store: Store) -> None:
    put(store, curve([1.0], [0]), {"rate": 1})
    times = xr.Dataset({"loss": ("step", [1.0])}, {"step": np.array(["2020-01-01"], "M8[ns]")})
    put(store, times, {"rate": 2})
    with pytest.raises(InputError, match="variable 'step' has the dtypes"):
        store.to_xarray("demo")
