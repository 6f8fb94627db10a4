"""Sentences follow the numbers, whichever way these come out."""

import numpy as np
import pytest
import xarray as xr

from normscope.experiments.tour.findings import (
    about_curvature,
    about_landscape,
    about_shift,
)
from normscope.experiments.tour.findings_of_limits import about_limits, about_training
from normscope.experiments.tour.findings_of_theory import about_depth, about_theorems

CELL = ("norm", "seed")


@pytest.fixture
def results():
    steps = np.linspace(1.0, 0.1, 20)
    loss = np.stack([np.stack([steps, steps]), np.stack([steps / 10, steps / 10])])
    curve = (*CELL, "step")
    wide = np.ones((2, 2, 3))
    return xr.Dataset(
        {
            "limit": (CELL, [[0.1, 0.2], [2.0, 4.0]]),
            "safe": (CELL, [[0.05, 0.06], [1.0, 1.0]]),
            "by_curvature": (CELL, [[0.2, 0.2], [1.5, 1.5]]),
            "by_theory": (CELL, [[0.04, 0.04], [np.nan, np.nan]]),
            "theory_says": (CELL, [["head", "head"], ["no such layer.", "no such layer."]]),
            "unstable": (CELL, [[0.2, 0.3], [3.0, np.inf]]),
            "test_accuracy": (CELL, [[0.8, 0.9], [0.95, np.nan]]),
            "outcome": (CELL, [["finished", "finished"], ["finished", "diverged"]]),
            "shared_outcome": (CELL, [["diverged", "finished"], ["finished"] * 2]),
            "shared_rate": 2.0,
            "shared_training_loss": ((*CELL, "training_step"), loss),
            "training_loss": ((*CELL, "training_step"), loss),
            "loss_low": (curve, 0 * wide),
            "loss_high": (curve, np.array([2.0, 1.0])[:, None, None] * wide),
            "gradient_distance_high": (curve, np.array([1.0, 3.0])[:, None, None] * wide),
            "effective_smoothness": (curve, np.array([1.0, np.inf])[:, None, None] * wide),
            "shift_cosine": ((*CELL, "step", "layer"), np.full((2, 2, 3, 2), 0.5)),
            "lambda_max": (("norm", "mode"), [[9.0, 9.0, 9.0], [2.0, 4.0, np.nan]]),
            "lowest": ("norm", [-3.0, 0.0]),
            "highest": ("norm", [9.0, 2.0]),
            "growth": (CELL, [[1.0, 1.0], [1.4, 1.6]]),
            "growth_with_skips": ("seed", [1.1, 1.2]),
            "expected_growth": 1.48,
            "gradient_norm": ((*CELL, "depth_layer"), np.ones((2, 2, 6))),
            "common_rate": 0.05,
        },
        coords={
            "norm": ["none", "batch"],
            "seed": [0, 1],
            "step": [0, 1, 2],
            "layer": ["a", "b"],
            "mode": ["train", "frozen", "eval"],
            "training_step": range(20),
            "depth_layer": range(1, 7),
        },
    )


def swapped(results):
    """The same with the two normalizations' numbers exchanged."""
    return results.assign_coords(norm=["batch", "none"]).sel(norm=["none", "batch"])


def test_limits_name_the_larger_one_whichever_it_is(results):
    first = about_limits(results)[0]
    largest, smallest = "3 (2 to 4)", "0.15 (0.1 to 0.2)"
    assert f"largest with BatchNorm, {largest}, and smallest without normalization" in first
    assert f"{smallest}, in all 2 seeds. The one is 20 times the other." in first
    turned = about_limits(swapped(results))[0]
    assert f"largest without normalization, {largest}, and smallest with BatchNorm" in turned


def test_limits_say_where_no_end_was_found_and_what_theory_does_not_cover(results):
    text = " ".join(about_limits(results))
    assert "found no end with BatchNorm" in text
    assert "0.04 without normalization (measured: 0.055 (0.05 to 0.06))" in text
    assert "The theory has no word with BatchNorm: no such layer." in text


def test_prediction_is_given_by_its_best_and_worst(results):
    text = " ".join(about_limits(results))
    assert "1.33 (without normalization) to 2.00 (with BatchNorm)" in text


def test_training_counts_divergences_and_gives_the_loss_of_the_others(results):
    shared, own, accuracy = about_training(results)
    assert "2, half the largest limit, trainings diverge: 1 of 2 without normalization" in shared
    assert "loss is 0.31 without normalization and 0.031 with BatchNorm." in shared
    assert "half its own limit trainings diverge: 1 of 2 with BatchNorm; after 20 steps" in own
    assert "0.85 (0.8 to 0.9) without normalization and 0.95 with BatchNorm" in accuracy
    calm = results.assign(outcome=(CELL, [["finished"] * 2] * 2))
    assert "half its own limit no training diverges; after 20 steps" in about_training(calm)[1]
    wild = results.assign(shared_outcome=(CELL, [["diverged"] * 2] * 2))
    assert about_training(wild)[0].endswith(
        "2 of 2 without normalization and 2 of 2 with BatchNorm."
    )


def test_landscape_says_in_how_many_seeds_it_is_smaller(results):
    first, loss, gradient, smoothness, _ = about_landscape(results)
    assert "varies most without normalization, 2, and least with BatchNorm, 1" in first
    assert "2 without normalization and 1 with BatchNorm (smaller in all 2 seeds)" in loss
    assert "3 with BatchNorm (smaller in none of 2 seeds)" in gradient
    assert "infinite with BatchNorm (smaller in none of 2 seeds)" in smoothness


def test_equal_shift_is_lower_in_no_seed(results):
    assert "0.5 with BatchNorm (lower in none of 2 seeds)" in about_shift(results)[1]


def test_curvature_warns_of_modes_that_differ_only(results):
    first, everything, ends = about_curvature(results)
    assert "is largest without normalization, 9, and smallest with BatchNorm, 2, in this" in first
    assert "4 with the statistics held fixed with BatchNorm, where training feels 2" in first
    assert "9 without normalization and 2 with BatchNorm" in everything
    assert "from -3 to 9 without normalization and 0 to 2 with BatchNorm" in ends


def test_depth_gives_growth_with_and_without_skips(results):
    text = " ".join(about_depth(results))
    assert "through 6 layers" in text
    assert "is largest with BatchNorm, 1.5 (1.4 to 1.6), and smallest without" in text
    assert "Theory expects 1.48" in text
    assert "1.15 (1.1 to 1.2)" in text
    alone = about_depth(results.sel(norm=["none"]))
    assert "BatchNorm" not in " ".join(alone)


def test_theorems_that_fail_are_named_with_their_counts():
    checks = xr.Dataset(
        {
            "statement": ("verdict", ["one", "one", "two", "one", "two"]),
            "form": ("verdict", ["exact", "exact", "exact", "printed", "printed"]),
            "norm_layer": ("verdict", ["a", "b", "b", "a", "a"]),
            "refuted": ("verdict", [0, 0, 0, 1, 0]),
            "slack": ("verdict", [0.0, 0.0, 0.0, -0.25, 0.0]),
        },
        coords={"verdict": range(5)},
    )
    (sentence,) = about_theorems(checks)
    assert "Of 3 checks on the 2 BatchNorm layers" in sentence
    assert "in their exact form hold in all." in sentence
    assert "as printed, at a vanishing eps, hold in 1; not so one (fails in 1 of 1, by" in sentence
    assert "up to 0.2 of its terms)" in sentence
    broken = checks.assign(refuted=("verdict", [1, 0, 0, 1, 0]))
    assert "exact form hold in 2; not so one (fails in 1 of 2" in about_theorems(broken)[0]
