"""Figures of the theory: everything lies inside the frame, axes are labelled, or say why not."""

from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from torch import nn

from normscope.meanfield import fully_connected_specification, predict
from normscope.models import build
from normscope.plots.meanfield import closure_curves


def fully_connected(norm=None, depth=2):
    norms = [] if norm is None else [norm(64)]
    inner = [nn.Sequential(nn.Linear(64, 64), *norms, nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(nn.Linear(20, 64), *norms, nn.ReLU(), *inner, nn.Linear(64, 5))


def convolutional():
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4))
    return nn.Sequential(nn.Conv2d(3, 32, 3), nn.GroupNorm(4, 32), nn.ReLU(), *pooled)


def long_named():
    names = [f"layer_with_a_long_name_{index}" for index in range(6)]
    return nn.Sequential(OrderedDict({name: nn.Linear(20, 20) for name in names}))


PREDICTIONS = {
    "long names": lambda: predict(long_named()),
    "mlp": lambda: predict(fully_connected()),
    "batch norm": lambda: predict(fully_connected(nn.BatchNorm1d)),
    "cnn": lambda: predict(convolutional(), (3, 8, 8)),
    "one layer": lambda: predict(nn.Sequential(nn.Linear(20, 5))),
    "deep": lambda: predict(fully_connected(depth=60)),
}


def drawn(axes):
    axes.figure.draw_without_rendering()
    return axes.get_window_extent()


@pytest.mark.parametrize("name", PREDICTIONS)
def test_bars_and_markers_of_layers_lie_inside_the_frame(name):
    axes = PREDICTIONS[name]().plot()
    frame = drawn(axes)
    (line,) = axes.get_lines()
    radius = line.get_markersize() / 2 * axes.figure.dpi / 72
    points = axes.transData.transform(line.get_xydata())
    assert (points[:, 1] + radius < frame.y1).all()
    assert (points[:, 1] - radius > frame.y0).all() or name == "deep"  # gradients may vanish
    assert (points[:, 0] - radius > frame.x0).all()
    assert (points[:, 0] + radius < frame.x1).all()
    bars = [bar.get_window_extent() for bar in axes.patches]
    assert all(bar.y1 < frame.y1 - 0.02 * frame.height for bar in bars)
    assert max(bar.y1 for bar in bars) > frame.y0 + 0.5 * frame.height or name in (
        "one layer",
        "long names",
    )  # no term


@pytest.mark.parametrize("name", PREDICTIONS)
def test_layers_are_named_as_far_as_the_names_fit(name):
    prediction = PREDICTIONS[name]()
    axes = prediction.plot()
    drawn(axes)
    assert axes.get_xlabel() == "layer"
    assert axes.get_ylabel() == "term, squared gradient"
    labels = [label for label in axes.get_xticklabels() if label.get_text()]
    assert labels[0].get_text() == prediction.layers[0].name
    places = [axes.transData.transform((label.get_position()[0], 0))[0] for label in labels]
    if labels[0].get_rotation():
        apart = labels[0].get_fontsize() * axes.figure.dpi / 72 * 2**0.5
        assert (np.diff(places) > apart).all()
    else:
        ends = [label.get_window_extent() for label in labels]
        assert all(left.x1 < right.x0 for left, right in pairwise(ends))


def test_few_layers_are_all_named_also_in_a_small_figure():
    axes = predict(fully_connected()).plot(Figure((2.4, 2), layout="constrained").subplots())
    drawn(axes)
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["0", "2.0", "3.0", "4"]


def test_one_value_of_gamma_is_a_point():
    axes = predict(fully_connected(nn.BatchNorm1d), gamma=[0.5]).plot()
    assert all(line.get_marker() == "o" for line in axes.get_lines())
    several = predict(fully_connected(nn.BatchNorm1d), gamma=[0.5, 1.0]).plot()
    assert all(line.get_marker() == "None" for line in several.get_lines())


def test_closures_are_named_with_what_is_drawn():
    found = [
        predict(fully_connected_specification(), closure=each, gamma=[1.0])
        for each in ("train", "frozen")
    ]
    curves = xr.concat(
        [each.to_xarray()["lambda_max"] for each in found],
        xr.Variable("closure", ["train", "frozen"]),
    )
    axes = closure_curves(xr.Dataset({"lambda_max": curves}))
    assert axes.get_legend_handles_labels()[1] == ["train", "frozen"]
    assert axes.get_title() == "mean-field theory"
    assert axes.get_ylabel() == r"$\lambda_{\max}$ of the Fisher matrix"
    assert all(line.get_marker() == "o" for line in axes.get_lines())


NO_ANSWER = "The theory has no answer: no layer has a mean gradient"


def said(axes):
    return " ".join(" ".join(text.get_text() for text in axes.texts).split())


def test_sweep_without_an_answer_says_why():
    network = build("fully_connected", width=20, activation="tanh")
    axes = predict(network, gamma=[0.5, 1.0]).plot()
    assert said(axes).startswith(NO_ANSWER)
    assert not axes.lines
    assert axes.get_legend() is None
    plain = predict(build("fully_connected", width=20), gamma=[0.5, 1.0]).plot()
    assert len(plain.lines) == len(plain.get_legend().get_texts()) == 2
    assert not plain.texts


def test_closures_without_an_answer_have_no_line():
    curves = xr.DataArray(
        [[np.nan, np.nan], [2.0, 3.0]],
        {"closure": ["train", "frozen"], "gamma": [0.5, 1.0]},
        ("closure", "gamma"),
    )
    axes = closure_curves(xr.Dataset({"lambda_max": curves}))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["frozen"]
    reason = {"reason": ["it is odd. Measure it."] * 2}
    empty = closure_curves(xr.Dataset({"lambda_max": curves * np.nan}, attrs=reason))
    assert said(empty) == "The theory has no answer: it is odd."
    assert empty.get_legend() is None
