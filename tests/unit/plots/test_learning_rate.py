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


def names(axes):
    """Names of lines and regions, by their text."""
    return {text.get_text(): text for text in axes.texts if text.get_text()}


def points(axes):
    """Rates and losses of the runs, by their marker."""
    return {
        line.get_marker(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.lines
        if line.get_marker() in ("o", "x", "s")
    }


def regions(axes):
    """Ends of the shaded regions, by their name."""
    return {
        patch.get_label().strip("_"): (patch.get_x(), patch.get_x() + patch.get_width())
        for patch in axes.patches
    }


def test_runs_are_drawn_by_how_they_ended():
    axes = learning_rates(RUNS)
    assert points(axes) == {"o": [(0.9, 1.0)], "s": [(0.95, 1.2)], "x": [(1.1, 1e3)]}
    assert legend(axes) == ["stable run", "unstable run", "run whose outputs became constant"]
    assert "unstable\nbeyond 1.5" in names(axes)


def test_advice_without_runs_has_no_vertical_axis():
    axes = learning_rates(advice())
    assert axes.get_ylabel() == ""
    assert len(axes.get_yticks()) == len(axes.get_yticks(minor=True)) == 0
    assert axes.get_xscale() == "log"
    assert axes.get_legend() is None
    assert not any("beyond" in name for name in names(axes))


@pytest.mark.parametrize("data", [advice(), RUNS])
def test_every_line_is_named_with_its_rate_and_no_names_overlap(data):
    axes = learning_rates(data)
    axes.figure.draw_without_rendering()
    labels = ["curvature bound 0.1", "recommended 0.5", "limit 1", "predicted 1", "theory 0.3"]
    boxes = [names(axes)[label].get_window_extent() for label in labels]
    for index, box in enumerate(boxes):
        assert box.y0 >= axes.get_window_extent().y1
        assert axes.figure.bbox.x0 <= box.x0 < box.x1 <= axes.figure.bbox.x1
        assert box.y1 <= axes.figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])


def test_given_axes_are_drawn_on():
    axes = Figure(layout="constrained").subplots(1, 2)[0]
    assert learning_rates(RUNS, axes) is axes
    assert "limit 1" in names(axes)


def test_prediction_that_is_the_limit_does_not_hide_it():
    lines = {line.get_label().strip("_"): line for line in learning_rates(advice()).lines}
    order = list(lines)
    assert order.index("predicted") > order.index("limit")
    assert lines["predicted"].get_linestyle() == "--"
    assert lines["limit"].get_linestyle() == "-"


def test_stable_and_unstable_are_shaded_around_the_interval():
    axes = learning_rates(advice())
    first, last = axes.get_xlim()
    assert regions(axes) == {
        "stable": pytest.approx((first, 0.5)),
        "unstable": pytest.approx((2.0, last)),
    }
    assert {"stable", "unstable"} <= set(names(axes))


def test_interval_without_an_end_is_not_followed_by_an_unstable_region():
    endless = learning_rates(advice(high=np.inf))
    assert set(regions(endless)) == {"stable"}
    assert "unstable" not in names(endless)
    bottomless = learning_rates(advice(low=0.0))
    assert set(regions(bottomless)) == {"unstable"}
