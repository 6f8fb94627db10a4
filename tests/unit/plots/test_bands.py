import numpy as np
import pytest
import xarray as xr

from normscope.plots.bands import band, band_of
from normscope.plots.style import new_figure


def values():
    return xr.DataArray(
        [[1.0, 3.0, 2.0], [5.0, 4.0, 6.0], [2.0, np.nan, 1.0]],
        dims=("step", "distance"),
        coords={"step": [0, 10, 20], "distance": [0.5, 1.0, 2.0]},
    )


def test_band_is_from_the_least_to_the_largest():
    ends = band_of(values())
    np.testing.assert_array_equal(ends["low"], [1.0, 4.0, np.nan])
    np.testing.assert_array_equal(ends["high"], [3.0, 6.0, np.nan])


def test_drawn_band_has_these_edges():
    axes = band(values()[:2], label="with", colour="#D55E00")
    low, high = (line.get_ydata().tolist() for line in axes.lines)
    assert (low, high) == ([1.0, 4.0], [3.0, 6.0])
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.0, 6.0)
    assert axes.get_legend().get_texts()[0].get_text() == "with"
    assert axes.get_xlabel() == "step"


def test_two_bands_share_an_axis():
    axes = new_figure().subplots()
    assert band(values(), axes, "one") is axes
    band(values() + 1, axes, "other", "#000000")
    assert len(axes.collections) == 2


def test_single_step_is_marked():
    (low, _) = band(values()[:1]).lines
    assert low.get_marker() == "."


@pytest.mark.parametrize("dimension", ["step", "distance"])
def test_band_goes_over_the_dimension_asked_for(dimension):
    assert dimension not in band_of(values(), dimension).dims
