"""Figures of a theory that has no answer say so, and have no legend of what is not there."""

import numpy as np
import xarray as xr

from normscope.meanfield import predict
from normscope.models import build
from normscope.plots.meanfield import closure_curves

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
