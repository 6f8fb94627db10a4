import json
from dataclasses import replace

import matplotlib

matplotlib.use("Agg")

import pytest
import torch
from matplotlib import pyplot as plt

from normscope.curvature import TopEigenvalue


@pytest.fixture
def result():
    return TopEigenvalue(
        values=torch.tensor([4.0, -2.0], dtype=torch.float64),
        vectors=torch.eye(3)[:, :2],
        residuals=torch.tensor([1e-4, 5e-4], dtype=torch.float64),
        errors=torch.tensor([1e-8, 3e-8], dtype=torch.float64),
        tolerance=1e-3,
        converged=True,
        matvecs=3.25,
        seconds=0.5,
        batch_size=32,
        samples=64,
        kind="hessian",
        mode="train",
        which="magnitude",
    )


def test_value_and_residual_are_the_first_and_the_worst(result):
    assert result.value == 4.0
    assert result.residual == 5e-4


def test_result_prints_as_a_short_table(result):
    assert str(result).splitlines() == [
        "Hessian, magnitude, mode train, batch size 32",
        "eigenvalue  rel. residual",
        "-------------------------",
        "         4        1.0e-04",
        "        -2        5.0e-04",
        "",
        "converged to 0.001, about 3 matrix-vector products, 0.50 s",
    ]
    assert repr(result) == str(result)
    assert ", 10 matrix-vector products, " in str(replace(result, matvecs=10.0))


def test_result_is_a_table_in_notebooks(result):
    page = result._repr_html_()
    assert page.count("<tr>") == 3
    assert ">-2</td>" in page
    assert ">5.0e-04</td>" in page


def test_result_as_dict_is_strict_json(result):
    record = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert record["values"] == [4.0, -2.0]
    assert record["batch_size"] == 32
    assert record["converged"] is True


def test_result_as_dataframe_has_a_row_per_value(result):
    frame = result.to_dataframe()
    assert frame["value"].tolist() == [4.0, -2.0]
    assert frame["residual"].tolist() == [1e-4, 5e-4]
    assert frame["error"].tolist() == [1e-8, 3e-8]
    assert set(frame["kind"]) == {"hessian"}


def test_result_draws_its_values(result):
    axes = result.plot()
    line = axes.get_lines()[0]
    assert line.get_ydata().tolist() == [4.0, -2.0]
    assert "Hessian" in axes.get_ylabel()
    _, other = plt.subplots()
    assert result.plot(other) is other
    plt.close("all")
