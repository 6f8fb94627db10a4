"""Results as files: what is written is read back, by other programs too."""

import csv

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import normscope as ns
from normscope.errors import InputError, StateError
from normscope.integrations import long_table, write_csv, write_netcdf
from normscope.results import Store


@pytest.fixture(scope="module")
def results():
    """Every kind of variable; the last step lacks what the next would show."""
    torch.manual_seed(0)
    model = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=8, depth=3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = ns.data.load("digits").train
    with ns.Scope(model, "cross_entropy", optimizer, "full", every=1) as scope:
        for start in (0, 16):
            scope.step(x[start : start + 16], y[start : start + 16])
    return scope.results


def test_long_table_has_every_number_at_its_place(results):
    table = long_table(results)
    numbers = sum(int(variable.notnull().sum()) for variable in results.data_vars.values())
    assert len(table) == numbers
    norms = table[table["variable"] == "gradient_norm"]
    for row in norms.itertuples():
        assert results["gradient_norm"].sel(step=row.step, layer=row.layer) == row.value
    losses = table[table["variable"] == "loss"]
    assert losses["value"].tolist() == results["loss"].values.tolist()
    assert set(losses["layer"]) == {""}
    means = table[table["variable"] == "activation_mean"]
    assert set(means["channel"]) == set(results["channel"].values.ravel()) - {-1}


def test_csv_comes_back_to_the_bit(results, tmp_path):
    write_csv(results, tmp_path / "scope.csv")
    with (tmp_path / "scope.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["value"]) for row in rows] == long_table(results)["value"].tolist()
    assert [*rows[0]] == long_table(results).columns.tolist()
    norms = {
        (int(row["step"]), row["layer"]): float(row["value"])
        for row in rows
        if row["variable"] == "gradient_norm"
    }
    there = results["gradient_norm"]
    assert len(norms) == there.size
    for (step, layer), value in norms.items():
        assert there.sel(step=step, layer=layer) == value


def test_netcdf_comes_back_with_labels_and_attributes(results, tmp_path):
    write_netcdf(results, tmp_path / "scope.nc")
    with xr.open_dataset(tmp_path / "scope.nc", engine="scipy") as found:
        xr.testing.assert_equal(found.load(), results)
        assert found.attrs == results.attrs
        assert found["layer"].values.tolist() == results["layer"].values.tolist()


def test_scope_of_a_store_exports_in_both_forms(tmp_path):
    model = torch.nn.Linear(2, 2)
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    with Store(tmp_path / "runs.db") as store:
        for norm in ("batch", "none"):
            labels = {"norm": norm}
            with ns.Scope(model, "cross_entropy", None, "gradient_norms", 1, store=store,
                          labels=labels) as scope:  # fmt: skip
                scope.step(x, y)
        store.to_netcdf(tmp_path / "runs.nc", "scope")
        write_csv(store.to_xarray("scope"), tmp_path / "runs.csv")
        frame = store.to_dataframe("scope")
    table = pd.read_csv(tmp_path / "runs.csv")
    assert set(table["norm"]) == {"batch", "none"}
    assert len(frame) == 2
    with xr.open_dataset(tmp_path / "runs.nc", engine="scipy") as found:
        assert found["norm"].values.tolist() == ["batch", "none"]


def test_empty_and_scalar_variables_have_their_rows():
    assert long_table(xr.Dataset()).columns.tolist() == ["variable", "value"]
    assert len(long_table(xr.Dataset({"a": ("x", [np.nan])}))) == 0
    single = long_table(xr.Dataset({"a": 2.0, "b": ("x", [1.0, 3.0])}, {"seed": 7}))
    assert single["value"].tolist() == [2.0, 1.0, 3.0]
    assert single["seed"].tolist() == [7, 7, 7]
    assert single["x"].tolist() == ["", 0, 1]


def test_texts_and_truth_values_are_written(tmp_path):
    given = xr.Dataset({"word": ("x", ['a "b", c', "d\ne"]), "fits": ("x", [True, False])})
    write_csv(given, tmp_path / "words.csv")
    table = pd.read_csv(tmp_path / "words.csv")
    assert table["value"].tolist() == ['a "b", c', "d\ne", "True", "False"]


def test_dimension_with_the_name_of_a_column_is_refused():
    with pytest.raises(InputError, match="'value' has the name of a column"):
        long_table(xr.Dataset({"a": ("value", [1.0])}))


def test_unwritable_file_is_told_and_nothing_is_left(tmp_path):
    (tmp_path / "scope.csv").mkdir()
    with pytest.raises(StateError, match=r"scope\.csv cannot be written"):
        write_csv(xr.Dataset({"a": 1.0}), tmp_path / "scope.csv")
    assert [each.name for each in tmp_path.iterdir()] == ["scope.csv"]


def test_csv_has_no_formulas_and_keeps_negative_numbers(results, tmp_path):
    given = xr.Dataset(
        {"=loss": (("layer", "rate"), [[-1.5, 2.0]]), "word": ("layer", ["@a"])},
        {"layer": ["+conv"], "rate": [-0.5, 0.5], "-x": ("layer", ["\tb"])},
    )
    write_csv(given, tmp_path / "runs.csv")
    table = pd.read_csv(tmp_path / "runs.csv")
    assert list(table) == ["variable", "layer", "rate", "'-x", "value"]
    assert table["variable"].tolist() == ["'=loss", "'=loss", "word"]
    assert table["layer"].tolist() == ["'+conv"] * 3
    assert table["'-x"].tolist() == ["'\tb"] * 3
    assert table["value"].tolist() == ["-1.5", "2.0", "'@a"]
    assert table["rate"].tolist()[:2] == [-0.5, 0.5]
