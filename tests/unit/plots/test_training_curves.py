import numpy as np
import pytest
import xarray as xr

from normscope.plots.style import colour_of
from normscope.plots.training_curves import training_curves


@pytest.fixture
def results():
    loss = np.ones((2, 2, 2, 3))
    loss[0, 1, 0] = [1.0, 50.0, np.nan]
    outcome = np.full((2, 2, 2), "finished")
    outcome[0, 1, 0] = "diverged"
    cell = ("norm", "learning_rate", "seed")
    return xr.Dataset(
        {"loss": ((*cell, "step"), loss), "outcome": (cell, outcome)},
        coords={
            "norm": ["none", "batch"],
            "learning_rate": [0.1, 1.0],
            "seed": [0, 1],
            "step": [0, 1, 2],
        },
    )


def test_one_panel_for_each_learning_rate_and_one_line_for_each_run(results):
    figure = training_curves(results)
    assert [axes.get_title() for axes in figure.axes] == ["learning rate 0.1", "learning rate 1"]
    assert len(figure.axes[0].lines) == 4
    assert {line.get_color() for line in figure.axes[0].lines} == {
        colour_of("none"),
        colour_of("batch"),
    }
    assert all(axes.get_yscale() == "log" for axes in figure.axes)


def test_divergence_is_marked_at_its_last_finite_loss(results):
    lines = training_curves(results).axes[1].lines
    crosses = [line for line in lines if line.get_marker() == "x"]
    assert len(crosses) == 1
    assert crosses[0].get_xydata().tolist() == [[1.0, 50.0]]


def test_legend_names_each_normalization_once(results):
    legend = training_curves(results).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["none", "batch"]
