"""The drawings of the tour, from numbers made by hand."""

import numpy as np
import pytest
import xarray as xr

from normscope.plots.depth import gradient_depth
from normscope.plots.labels import values_of
from normscope.plots.layer_shift import norm_shift
from normscope.plots.loss_landscape import norm_landscape, norm_roughness
from normscope.plots.overview import limits_figure, overview, rate_limits, training_figure
from normscope.plots.phase_diagram import phase_diagram
from normscope.plots.spectrum import spectra
from normscope.plots.style import colour_of
from normscope.plots.verdicts import verdicts

CELL = ("norm", "seed")
CURVE = (*CELL, "step")


@pytest.fixture
def results():
    low = np.full((2, 2, 3), 0.5)
    return xr.Dataset(
        {
            "limit": (CELL, [[0.1, 0.2], [2.0, 4.0]]),
            "stable": (CELL, [[0.09, 0.19], [1.9, 4.0]]),
            "unstable": (CELL, [[0.11, 0.21], [2.1, np.inf]]),
            "predicted": (CELL, [[0.2, 0.2], [1.5, 1.5]]),
            "theory": (CELL, [[0.04, 0.04], [np.nan, np.nan]]),
            "training_loss": ((*CELL, "training_step"), np.array([[[2, 1], [2, 1.5]]] * 2)),
            "outcome": (CELL, [["finished"] * 2] * 2),
            "shared_training_loss": (
                (*CELL, "training_step"),
                [[[2.0, np.nan], [2.0, 9.0]], [[2.0, 1.0], [2.0, 1.0]]],
            ),
            "shared_outcome": (CELL, [["diverged"] * 2, ["finished"] * 2]),
            "shared_rate": 1.5,
            "loss_low": (CURVE, low),
            "loss_high": (CURVE, 2 * low),
            "gradient_distance_low": (CURVE, low),
            "gradient_distance_high": (CURVE, 3 * low),
            "effective_smoothness": (CURVE, low),
            "shift_cosine": ((*CURVE, "layer"), np.broadcast_to([0.0, 0.8], (2, 2, 3, 2))),
            "shift_distance": ((*CURVE, "layer"), np.ones((2, 2, 3, 2))),
            "eigenvalue": (("norm", "point"), [[-1.0, 0.0, 1.0], [0.0, 2.0, np.nan]]),
            "density": (("norm", "point"), [[0.1, 1.0, 0.1], [1.0, 0.5, np.nan]]),
            "density_error": (("norm", "point"), np.full((2, 3), 0.01)),
            "parameters": ("norm", [100, 100]),
            "lambda_max": (("norm", "mode"), [[1.0], [np.nan]]),
            "gradient_norm": (
                (*CELL, "depth_layer"),
                np.array([[[2.0, 2.0, 2.0, 7.0]] * 2, [[8.0, 4.0, 2.0, 7.0]] * 2]),
            ),
            "expected_growth": 4.0,
        },
        coords={
            "norm": ["none", "batch"],
            "seed": [0, 1],
            "step": [0, 5, 10],
            "training_step": [0, 1],
            "layer": ["a", "b"],
            "point": [0, 1, 2],
            "mode": ["train"],
            "depth_layer": [1, 2, 3, 4],
        },
        attrs={"linear_threshold": 0.1},
    )


def drawn_at(axes, marker):
    """Places of the marks of one kind that are shown."""
    lines = [line for line in axes.lines if line.get_marker() == marker]
    points = np.concatenate([line.get_xydata() for line in lines])
    return sorted(points[np.isfinite(points).all(1), 0].tolist())


def test_limits_of_every_seed_are_marked_and_open_ends_differently(results):
    axes = rate_limits(results)
    assert drawn_at(axes, "o") == [0.1, 0.2, 2.0]
    assert drawn_at(axes, ">") == [4.0]
    assert drawn_at(axes, "D") == [0.2, 0.2, 1.5, 1.5]
    assert drawn_at(axes, "^") == [0.04, 0.04]  # none where the theory has no word
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["no normalization", "BatchNorm"]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first on top


def test_limits_are_written_beside_their_rows_with_the_ratio_to_the_bare_net(results):
    (axes,) = limits_figure(results).axes
    assert [text.get_text() for text in axes.texts] == ["0.15", "at least 3"]  # an end is open
    closed = results.assign(unstable=results["limit"])
    (axes,) = limits_figure(closed).axes
    assert [text.get_text() for text in axes.texts] == ["0.15", "3 (20x)"]
    alone = closed.sel(norm=["batch"])
    assert [text.get_text() for text in rate_limits(alone).texts] == ["3"]


def test_trainings_are_named_at_their_ends_without_a_legend(results):
    own, shared = training_figure(results).axes
    assert own.get_legend() is shared.get_legend() is None
    assert {text.get_text() for text in own.texts} == {"no normalization", "BatchNorm"}
    assert {text.get_text() for text in shared.texts} == {"no normalization diverges", "BatchNorm"}
    named = {each.name: each.texts for each in values_of(shared)}
    assert named["no normalization"] == [("0", "2")]  # NaN where the median diverged
    assert named["BatchNorm"] == [("0", "2"), ("1", "1")]


def test_overview_draws_the_median_over_the_seeds(results):
    _, training, _ = overview(results).axes
    thick = [line for line in training.lines if line.get_linewidth() > 1]
    assert [line.get_ydata().tolist() for line in thick] == [[2.0, 1.25]] * 2
    assert [line.get_color() for line in thick] == [colour_of("none"), colour_of("batch")]


def test_overview_marks_divergence_at_the_last_loss_that_is_a_number(results):
    _, own, shared = overview(results).axes
    crosses = [line for line in shared.lines if line.get_marker() == "x"]
    assert [line.get_xydata().tolist() for line in crosses] == [[[0.0, 2.0]], [[1.0, 9.0]]]
    assert {line.get_color() for line in crosses} == {colour_of("none")}
    assert not [line for line in own.lines if line.get_marker() == "x"]
    assert shared.get_title(loc="left").startswith("All at 1.5")


def test_landscape_has_a_column_for_each_norm_on_one_scale(results):
    bands = norm_landscape(results).axes
    what = "loss along the gradient"
    titles = [axes.get_title() for axes in bands[:2]]
    assert titles == [f"no normalization\n{what}", f"BatchNorm\n{what}"]
    assert bands[0].get_ylim() == bands[1].get_ylim()
    (roughness,) = norm_roughness(results).axes
    assert roughness.get_ylabel() == "roughness (beta), larger is rougher"


def test_shift_leaves_out_the_first_layer(results):
    cosine, _ = norm_shift(results).axes
    assert all((line.get_ydata() == 0.8).all() for line in cosine.lines)


def test_spectra_share_the_axis_and_leave_out_what_is_not_there(results):
    none, batch = spectra(results).axes
    assert none.get_xscale() == "symlog"
    assert none.get_xlim() == batch.get_xlim()
    assert len(batch.lines[0].get_xdata()) == 2
    assert len(none.lines) == 2  # with lambda_max
    assert len(batch.lines) == 1


def test_gradients_are_relative_to_the_last_hidden_layer(results):
    (axes,) = gradient_depth(results).axes
    lines = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert lines["BatchNorm"] == [4.0, 2.0, 1.0]
    assert lines["no normalization"] == [1.0, 1.0, 1.0]
    assert lines["theory, BatchNorm"] == [4.0, 2.0, 1.0]  # the root of 4 per layer


def test_refuted_statements_are_crosses_at_the_difference_of_their_sides():
    checks = xr.Dataset(
        {
            "statement": ("verdict", ["fact_c1", "fact_c1", "theorem_4_1"]),
            "form": ("verdict", ["exact", "printed", "printed"]),
            "kind": ("verdict", ["identity", "identity", "bound"]),
            "slack": ("verdict", [0.0, -0.5, 0.25]),
            "refuted": ("verdict", [0, 1, 0]),
        },
        coords={"verdict": range(3)},
    )
    (axes,) = verdicts(checks).axes
    assert drawn_at(axes, "x") == [0.5]
    assert drawn_at(axes, "o") == [1e-18, 0.25]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["Fact C.1, identity", "Theorem 4.1, bound"]


def test_statement_whose_forms_differ_in_kind_says_both():
    checks = xr.Dataset(
        {
            "statement": ("verdict", ["theorem_4_2", "theorem_4_2"]),
            "form": ("verdict", ["exact", "printed"]),
            "kind": ("verdict", ["identity", "bound"]),
            "slack": ("verdict", [0.0, 0.5]),
            "refuted": ("verdict", [0, 0]),
        },
        coords={"verdict": range(2)},
    )
    (axes,) = verdicts(checks).axes
    (name,) = (label.get_text() for label in axes.get_yticklabels())
    assert name == "Theorem 4.2,\nidentity if exact,\nbound as printed"


@pytest.mark.parametrize(("largest", "extend"), [(2.0, "neither"), (2.8e5, "max")])
def test_colour_bar_has_an_arrow_where_losses_are_beyond_it(largest, extend):
    cells = ("gamma", "learning_rate", "seed")
    losses = np.array([[0.5, 1.0], [1.5, largest]])[..., None]
    diagram = xr.Dataset(
        {"test_loss": (cells, losses), "diverged": (cells, np.zeros((2, 2, 1)))},
        coords={"gamma": [0.5, 1.0], "learning_rate": [0.1, 1.0], "seed": [0]},
    )
    axes = phase_diagram(diagram)
    assert axes.collections[-1].colorbar.extend == extend


def test_every_panel_of_the_landscape_names_its_steps(results):
    assert {axes.get_xlabel() for axes in norm_landscape(results).axes} == {"step"}
