import numpy as np
import pytest
import xarray as xr

from normscope.plots.learning_rate import comparison
from normscope.plots.style import colour_of

NORMS = ["none", "batch"]
NOTHING = np.nan


@pytest.fixture
def results():
    return xr.Dataset(
        {
            "curvature_bound": ("norm", [0.01, 0.1]),
            "limit": ("norm", [0.02, 1.0]),
            "recommended": ("norm", [0.015, 0.5]),
            "low": ("norm", [0.018, 0.8]),
            "high": ("norm", [np.inf, 1.2]),  # nothing unstable was seen
            "lambda_max": (("norm", "mode"), [[100.0, NOTHING, NOTHING], [2.0, 30.0, 40.0]]),
            "loss": (("norm", "step"), [[2.0, 1.5, NOTHING], [2.0, 1.0, 0.5]]),
        },
        {"norm": NORMS, "mode": ["train", "frozen", "eval"]},
    )


def points(axes, row):
    """Where markers stand in one row, by their form."""
    return {
        line.get_marker(): line.get_xdata()[0]
        for line in axes.lines
        if len(line.get_xdata()) == 1 and line.get_ydata()[0] == row
    }


def test_rates_and_eigenvalues_are_points_on_logarithmic_axes(results):
    rates, curvature, training = comparison(results).axes
    assert rates.get_xscale() == curvature.get_xscale() == training.get_yscale() == "log"
    assert [*rates.patches, *curvature.patches] == []  # no bars: they would have no foot
    assert points(rates, 1) == {"D": 0.5, "o": 1.0, "|": 0.1}
    assert points(curvature, 1) == {"o": 2.0, "s": 30.0, "^": 40.0}
    assert points(curvature, 0) == {"o": 100.0}  # modes that do not apply are left out


def test_interval_is_drawn_only_where_it_has_an_end(results):
    rates = comparison(results).axes[0]
    spans = {
        line.get_ydata()[0]: list(line.get_xdata()) for line in rates.lines if line.get_lw() == 7
    }
    assert spans == {1: [0.8, 1.2]}


def test_rows_are_named_from_the_top_and_markers_explained(results):
    rates, curvature, training = comparison(results).axes
    assert [label.get_text() for label in rates.get_yticklabels()] == NORMS
    assert rates.get_ylim()[0] > rates.get_ylim()[1]
    told = [text.get_text() for text in rates.get_legend().get_texts()]
    assert told == ["recommended", "limit", "curvature bound", "interval of the limit"]
    told = [text.get_text() for text in curvature.get_legend().get_texts()]
    assert told == ["train", "frozen", "eval"]
    assert [line.get_color() for line in training.lines] == [colour_of(norm) for norm in NORMS]
