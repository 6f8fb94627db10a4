from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from normscope.errors import InputError, StateError
from normscope.results import Store


@pytest.fixture
def store() -> Store:
    store = Store(":memory:")
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            dataset = xr.Dataset(
                {"loss": (("step", "layer"), [[rate, seed], [2.0, 3.0]], {"log": True})},
                coords={"step": [0, 1], "layer": ["first", "last"]},
                attrs={
                    "converged": True,
                    "settings": {"a": [1]},
                    "none": None,
                    "names": ["a", "b"],
                    "range": [0.5, 2.0],
                },
            )
            store.compute("demo", {"rate": rate}, seed, lambda: dataset)  # noqa: B023
    return store


def test_netcdf_holds_the_combined_dataset(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "demo.nc"
    store.to_netcdf(path, "demo")
    found, expected = xr.load_dataset(path, engine="scipy"), store.to_xarray("demo")
    xr.testing.assert_equal(found, expected)
    assert found.attrs["settings"] == '{"a":[1]}'
    assert found.attrs["names"] == '["a","b"]'
    assert found.attrs["range"].tolist() == [0.5, 2.0]
    assert (found.attrs["converged"], found.attrs["none"]) == (1, "null")
    assert [file.name for file in path.parent.iterdir()] == ["demo.nc"]


def test_dataframe_has_a_row_for_every_label(store: Store) -> None:
    frame = store.to_dataframe("demo")
    assert frame.index.names == ["rate", "seed", "step", "layer"]
    assert len(frame) == 16
    assert frame.loc[(0.2, 1, 0, "last"), "loss"] == 1


def test_what_netcdf_cannot_hold_is_told_and_leaves_the_old_file(tmp_path: Path) -> None:
    store, path = Store(":memory:"), tmp_path / "demo.nc"
    path.write_text("old")
    store.compute("demo", {}, 0, lambda: xr.Dataset({"v": ((), np.array(2**40))}))
    with pytest.raises(InputError, match="does not fit NetCDF"):
        store.to_netcdf(path, "demo")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("demo.nc", "old")]


def test_netcdf_where_none_can_be_written_is_told(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot be written"):
        store.to_netcdf(tmp_path / "file" / "demo.nc", "demo")
