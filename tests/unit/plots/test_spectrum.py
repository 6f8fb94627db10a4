import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgba

from normscope.errors import InputError
from normscope.plots.spectrum import spectrum
from normscope.plots.style import new_figure


def results(threshold=1e-3, parameters=100):
    values = np.linspace(-2.0, 3.0, 11)
    density = np.full(11, 0.5)
    density[2:4] = 1e-9  # no eigenvalue there
    return xr.Dataset(
        {
            "density": ("eigenvalue", density),
            "density_error": ("eigenvalue", np.full(11, 0.1)),
        },
        coords={"eigenvalue": values, "kind": "hessian", "mode": "train"},
        attrs={"linear_threshold": threshold, "parameters": parameters},
    )


def test_curve_is_the_density_where_there_is_one():
    axes = spectrum(results())
    values, drawn = axes.lines[0].get_data()
    assert values.tolist() == results()["eigenvalue"].values.tolist()
    assert np.isnan(drawn[2:4]).all()
    assert drawn[[0, 1, 4]].tolist() == [0.5] * 3
    assert (axes.get_xscale(), axes.get_yscale()) == ("symlog", "log")
    assert axes.xaxis.get_transform().linthresh == 1e-3


def test_band_is_one_standard_error():
    (band,) = spectrum(results()).collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(0.6)
    assert np.isclose(heights, 0.4).any()
    assert heights.min() == pytest.approx(0.5 / 100)  # nothing below half an eigenvalue


def test_two_spectra_share_an_axis():
    axes = new_figure().subplots()
    first = spectrum(results(), axes, label="without", colour="#000000")
    again = spectrum(results(parameters=1000), axes, label="with", colour="#D55E00")
    assert first is again is axes
    assert [line.get_color() for line in axes.lines] == ["#000000", "#D55E00"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["without", "with"]
    assert axes.get_ylim()[0] == pytest.approx(0.5 / 1000)
    assert tuple(axes.collections[1].get_facecolor()[0][:3]) == to_rgba("#D55E00")[:3]


def test_label_is_kind_and_mode_unless_given():
    (text,) = spectrum(results()).get_legend().get_texts()
    assert text.get_text() == "hessian, train"


def test_other_linear_part_is_refused():
    axes = spectrum(results(1e-3))
    with pytest.raises(InputError, match=r"one linear_threshold, got 0.001 and 0.01"):
        spectrum(results(1e-2), axes)


def test_figure_is_written(tmp_path):
    spectrum(results()).figure.savefig(tmp_path / "spectrum.svg")
    assert (tmp_path / "spectrum.svg").stat().st_size > 1000
