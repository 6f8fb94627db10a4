import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from normscope.plots.learning_rate import learning_rates

RATES = {"curvature_bound": 0.1, "recommended": 0.5, "limit": 1.0, "predicted": 1.0, "theory": 0.3}


def advice(*runs, **rates):
    names = ("rate", "unstable", "died", "worst", "is_ramp")
    columns = {name: ("run", [each[place] for each in runs]) for place, name in enumerate(names)}
    attributes = {**RATES, "low": 0.5, "high": 2.0, "growth_limit": 1.5, **rates}
    return xr.Dataset(columns, attrs=attributes)


RUNS = advice(
    (0.01, True, False, 9.0, True),  # a ramp
    (0.9, False, False, 1.0, False),
    (0.95, False, True, 1.2, False),
    (1.1, True, False, np.inf, False),
)


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def points(axes):
    """Rates and losses of the runs, by their marker."""
    return {
        line.get_marker(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.lines
        if line.get_marker() in ("o", "x", "s")
    }


def test_runs_are_drawn_by_how_they_ended():
    axes = learning_rates(RUNS)
    assert points(axes) == {"o": [(0.9, 1.0)], "s": [(0.95, 1.2)], "x": [(1.1, 1e3)]}
    assert legend(axes)[-4:] == [
        "stable run",
        "unstable run",
        "run in which the net died",
        "unstable beyond 1.5",
    ]


def test_advice_without_runs_has_no_vertical_axis():
    axes = learning_rates(advice())
    assert axes.get_ylabel() == ""
    assert len(axes.get_yticks()) == len(axes.get_yticks(minor=True)) == 0
    assert axes.get_xscale() == "log"
    assert legend(axes)[:3] == ["curvature bound", "recommended", "limit"]
    assert not any("run" in label or "beyond" in label for label in legend(axes))


@pytest.mark.parametrize("data", [advice(), RUNS])
def test_legend_lies_beside_the_axes_within_the_figure(data):
    axes = learning_rates(data)
    axes.figure.draw_without_rendering()
    key = axes.get_legend().get_window_extent()
    assert key.x0 >= axes.get_window_extent().x1
    assert key.x1 <= axes.figure.bbox.x1
    assert axes.figure.bbox.y0 <= key.y0
    assert key.y1 <= axes.figure.bbox.y1


def test_legend_lies_within_axes_that_are_given():
    axes = Figure().subplots(1, 2)[0]
    learning_rates(RUNS, axes)
    axes.figure.draw_without_rendering()
    key, room = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert room.x0 <= key.x0
    assert key.x0 < room.x1


def test_prediction_that_is_the_limit_does_not_hide_it():
    lines = {line.get_label(): line for line in learning_rates(advice()).lines}
    order = list(lines)
    assert order.index("predicted") > order.index("limit")
    assert lines["predicted"].get_linestyle() == "--"
    assert lines["limit"].get_linestyle() == "-"


def test_interval_is_named_and_drawn_only_where_it_has_an_end():
    assert "interval of the limit" in legend(learning_rates(advice()))
    endless = learning_rates(advice(high=np.inf))
    assert "interval of the limit" not in legend(endless)
    assert not endless.patches
