from io import BytesIO, StringIO

import numpy as np
import pandas as pd
import xarray as xr

from normscope.report import Table, dataset_downloads
from normscope.report.document import Name
from normscope.report.downloads import LARGEST, table_download


def by_name(dataset, stem="x"):
    return {each.name: each for each in dataset_downloads(dataset, stem)}


def frame(download):
    return pd.read_csv(StringIO(download.content.decode()))


def test_variables_over_the_same_labels_share_a_file():
    dataset = xr.Dataset(
        {
            "loss": (("rate", "seed"), [[0.1, 1 / 3], [np.nan, 4.0]]),
            "diverged": (("rate", "seed"), [[False, False], [True, False]]),
        },
        {"rate": [0.5, 2.0], "seed": [0, 1]},
    )
    found = by_name(dataset)
    assert list(found) == ["x.csv", "x.nc"]
    read = frame(found["x.csv"]).set_index(["rate", "seed"]).to_xarray()
    xr.testing.assert_equal(read, dataset)  # to the last digit


def test_variables_over_other_labels_have_their_own():
    dataset = xr.Dataset(
        {
            "loss": ("step", [2.0, 1.0]),
            "norm": (("step", "layer"), [[1.0, 2.0], [3.0, 4.0]]),
            "best": 0.5,
        },
        {"step": [0, 50], "layer": ["a,b", 'c"d'], "seed": 3},
    )
    found = by_name(dataset)
    assert list(found) == ["x_values.csv", "x_by_step.csv", "x_by_step_layer.csv", "x.nc"]
    assert frame(found["x_by_step.csv"]).columns.tolist() == ["step", "loss"]
    layers = frame(found["x_by_step_layer.csv"])
    assert layers["layer"].tolist() == ["a,b", 'c"d'] * 2
    assert layers["norm"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert frame(found["x_values.csv"])["best"].tolist() == [0.5]


def test_netcdf_comes_back_as_it_was():
    dataset = xr.Dataset(
        {"loss": ("step", [2.0, np.nan]), "ok": ("step", [True, False])},
        {"step": [0, 50], "name": ("step", ["a", "b"])},
        {"probes": "x", "settings": {"a": [1, None]}},
    )
    content = by_name(dataset)["x.nc"].content
    with xr.open_dataset(BytesIO(content), engine="scipy") as read:
        xr.testing.assert_equal(read.load(), dataset)


def test_large_data_are_left_out_and_say_so():
    dataset = xr.Dataset({"loss": ("step", np.zeros(LARGEST // 8 + 1))})
    netcdf = by_name(dataset)["x.nc"]
    assert netcdf.content == b""
    assert "larger than 1 MB" in netcdf.left_out
    many = xr.Dataset({"loss": (("a", "b"), np.zeros((1001, 1000)))})
    assert all(each.left_out for each in by_name(many).values())


def test_no_file_in_the_page_is_larger_than_the_limit():
    dataset = xr.Dataset({"loss": ("step", np.full(LARGEST // 16, 1 / 3))})
    csv = by_name(dataset)["x.csv"]
    assert len(csv.content) <= LARGEST
    assert csv.left_out


def test_data_that_netcdf_cannot_hold_are_explained():
    dataset = xr.Dataset({"number": ("step", np.array([2**40, 1]))})
    netcdf = by_name(dataset)["x.nc"]
    assert netcdf.left_out.startswith("not in this page: the dataset does not fit NetCDF")


def test_table_as_csv_keeps_full_precision_and_leaves_missing_values_empty():
    table = Table("t", ("name", "value"), [("a", 1 / 3), ("b", None)])
    assert table_download(table, "t.csv").content == f"name,value\na,{1 / 3!r}\nb,\n".encode()


FORMULAS = ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "=cmd|' /C calc'!A0"]


def test_text_is_never_a_formula_and_negative_numbers_stay():
    dataset = xr.Dataset(
        {"=loss": ("layer", np.linspace(-1, 1, len(FORMULAS))), "name": ("layer", FORMULAS)},
        {"layer": FORMULAS},
    )
    read = frame(by_name(dataset)["x.csv"])
    assert list(read) == ["layer", "'=loss", "name"]
    assert read["'=loss"].tolist() == np.linspace(-1, 1, len(FORMULAS)).tolist()
    for column in ("layer", "name"):
        assert all(text.startswith("'") for text in read[column])


def test_table_has_no_formulas_either():
    rows = [(Name("=a", "=a"), "-b", -1.5, -2, None), ("c", "@d", float("-inf"), 3, True)]
    table = Table("Records", ["+one", "two", "three", "four", "five"], rows)
    assert table_download(table, "records.csv").content.decode().splitlines() == [
        "'+one,two,three,four,five",
        "'=a,'-b,-1.5,-2,",
        "c,'@d,-inf,3,True",
    ]
