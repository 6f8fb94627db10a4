"""Figure 1 at a small size: its data set, its panels and its files."""

import pytest
import xarray as xr

from normscope.experiments.wei2018.figure1 import figure1, write


@pytest.fixture(scope="module")
def results():
    return figure1(
        gammas=(0.5, 1.0, 2.0),
        measured_gammas=(1.0,),
        seeds=1,
        width=60,
        channels=(6, 8, 10),
        samples=(120, 40),
    )


def test_theory_and_measurement_stand_side_by_side(results):
    assert results["lambda_max"].dims == ("architecture", "closure", "gamma")
    assert results["lambda_max_measured"].dims == (
        "architecture",
        "mode",
        "measured_gamma",
        "seed",
    )
    theory = results["lambda_max"].sel(architecture="fully_connected", closure="train", gamma=1.0)
    found = results["lambda_max_measured"].sel(architecture="fully_connected", mode="train")
    assert float(found.squeeze()) == pytest.approx(float(theory), rel=0.2)
    rates = results["max_learning_rate"] * results["lambda_max"]
    assert float(rates.min()) == pytest.approx(3.8)
    assert float(rates.max()) == pytest.approx(3.8)


def test_files_can_be_read_again(results, tmp_path):
    numbers, picture = write(results, tmp_path / "out")
    xr.testing.assert_identical(xr.load_dataset(numbers).load(), results)
    assert picture.read_text(encoding="utf-8").lstrip().startswith("<?xml")


def test_figure_has_four_panels(results):
    from normscope.plots.meanfield import figure_one

    figure = figure_one(results)
    assert [axes.get_title(loc="left")[:3] for axes in figure.axes] == ["(a)", "(b)", "(c)", "(d)"]
    # three closures, two lines without normalization, two modes measured and one without
    assert all(len(axes.lines) == 8 for axes in figure.axes)
