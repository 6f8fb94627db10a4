"""Sentences follow the numbers, whichever way these come out."""

import numpy as np
import pytest
import xarray as xr

from normscope.experiments.tour.findings import (
    about_curvature,
    about_depth,
    about_diagram,
    about_landscape,
    about_limits,
    about_shift,
    about_theorems,
    about_training,
)
from normscope.experiments.tour.page import cards, headline, tables_of
from normscope.experiments.tour.summary import LEGEND, findings
from normscope.experiments.tour.wording import contrast

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
            "curvature_bound": (CELL, [[0.05, 0.06], [1.0, 1.0]]),
            "predicted": (CELL, [[0.2, 0.2], [1.5, 1.5]]),
            "theory": (CELL, [[0.04, 0.04], [np.nan, np.nan]]),
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
    assert f"{smallest}, in all 2 seeds. The largest is 20 times the smallest." in first
    turned = about_limits(swapped(results))[0]
    assert f"largest without normalization, {largest}, and smallest with BatchNorm" in turned


def test_limits_say_where_no_end_was_found_and_what_theory_does_not_cover(results):
    text = " ".join(about_limits(results))
    assert "found no end with BatchNorm" in text
    assert "0.04 without normalization (measured: 0.055)." in text
    assert "Mean-field theory makes no estimate with BatchNorm: no such layer." in text


def test_layers_without_a_formula_are_named(results):
    says = "features.1: mean-field theory has no closure here for the module A. Supported are B."
    without = results.assign(
        theory_says=(CELL, [["head", "head"], [says, says]]),
    )
    *_, last = about_limits(without)
    assert last == (
        "Mean-field theory makes no estimate with BatchNorm: it has no formula for what that layer "
        "does to the signal."
    )
    neither = without.assign(
        theory=results["theory"] * np.nan, theory_says=(CELL, [[says] * 2] * 2)
    )
    *_, last = about_limits(neither)
    assert last.startswith(
        "Mean-field theory makes no estimate without normalization and with Batch"
    )
    assert last.endswith("what those layers do to the signal.")
    assert "features" not in last


def test_prediction_is_given_by_its_best_and_worst(results):
    text = " ".join(about_limits(results))
    assert "1.33 (without normalization) to 2.00 (with BatchNorm)" in text


def test_training_counts_divergences_and_gives_the_loss_of_the_others(results):
    shared, own, accuracy = about_training(results)
    assert (
        "all, 2 (half of 4, the largest limit in any seed), trainings diverge: 1 of 2 without "
        "normalization"
    ) in shared
    assert shared.endswith("after 20 steps the loss is 0.031 with BatchNorm.")
    assert "half its own limit trainings diverge: 1 of 2 with BatchNorm; after 20 steps" in own
    assert accuracy.endswith("0.475 to 0.85; the seeds do not agree on an order.")
    agreed = results.assign(test_accuracy=(CELL, [[0.8, 0.9], [0.95, 0.96]]))
    assert "the test accuracy is highest with BatchNorm, 0.955 (" in about_training(agreed)[2]
    one = about_training(agreed.isel(seed=[0]))[2]
    assert one.endswith("0.8 to 0.95; one seed does not show an order.")
    calm = results.assign(outcome=(CELL, [["finished"] * 2] * 2))
    assert (
        "half its own limit no training diverges; after 20 steps the loss is highest without "
        "normalization, 0.31, and lowest with BatchNorm, 0.031, in all 2 seeds."
    ) in about_training(calm)[1]
    wild = results.assign(shared_outcome=(CELL, [["diverged"] * 2] * 2))
    assert about_training(wild)[0].endswith(
        "2 of 2 without normalization and 2 of 2 with BatchNorm."
    )


def test_seeds_are_counted_in_which_a_net_is_the_extreme_of_all():
    """LayerNorm has the largest median, but in seed 2 the bare net's is larger."""
    widths = [[0.03, 0.03, 0.048], [0.01, 0.01, 0.01], [0.05, 0.05, 0.0462]]
    norms, seeds = ["none", "batch", "layer"], [0, 1, 2]
    values = xr.DataArray(widths, [("norm", norms), ("seed", seeds)])
    shown = contrast(values, "is largest", "smallest")
    assert shown.endswith(
        ", by the median over the seeds: the former in 2 of 3 seeds, the latter in all 3 seeds"
    )
    turned = contrast(0.06 - values, "is largest", "smallest")  # the largest is, the smallest not
    assert turned.endswith("the former in all 3 seeds, the latter in 2 of 3 seeds")
    both = values.copy()
    both.loc["batch", 2] = 0.047  # LayerNorm's is the smallest there
    assert contrast(both, "is largest", "smallest").endswith(": each in 2 of 3 seeds")
    assert contrast(values.isel(seed=[0, 1]), "is largest", "smallest").endswith("in all 2 seeds")


def test_eigenvalues_are_said_to_be_of_one_seed(results):
    assert about_curvature(results)[0].endswith("(first seed).")
    (table,) = tables_of("curvature", results)
    assert table.caption.endswith("; first seed alone")
    assert table.note.startswith("-: no finite number")  # BatchNorm has none in eval mode
    assert "eigenvalue of the first seed" in LEGEND


def test_landscape_says_what_is_smaller_in_every_seed(results):
    first, against, _ = about_landscape(results)
    assert "varies most without normalization, 2, and least with BatchNorm, 1" in first
    assert against.startswith("Compared with the net without normalization, in every seed: the")
    assert "the loss varies less with BatchNorm; the gradient changes less along its own" in against
    assert "own direction in no other net; the roughness (beta), the" in against
    assert against.endswith("per distance, is lower in no other net.")
    assert len(about_landscape(results.sel(norm=["none"]))) == 2


def test_equal_shift_is_lower_in_no_net(results):
    nowhere = "Nowhere else is it lower than without normalization in every seed."
    assert about_shift(results)[1] == nowhere
    turned = results.assign(
        shift_cosine=results["shift_cosine"] * xr.DataArray([1, 0.5], dims="norm")
    )
    assert about_shift(turned)[1].endswith("normalization in every seed with BatchNorm.")


def test_curvature_warns_of_modes_that_differ_only(results):
    first, warning = about_curvature(results)
    assert "is largest without normalization, 9, and smallest with BatchNorm, 2, in this" in first
    assert (
        "with BatchNorm is 2 in train mode and 4 with the batch statistics held fixed." in warning
    )
    same = results.assign(lambda_max=results["lambda_max"].sel(mode="train", drop=True))
    alike = same.assign(lambda_max=same["lambda_max"].expand_dims(mode=results["mode"]))
    assert len(about_curvature(alike)) == 1


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


def diagram():
    """Trainings that break between 1 and 10 at both scales; theory says 3 and 40."""
    cells = ("gamma", "learning_rate", "diagram_seed")
    broken = np.broadcast_to(np.array([0, 0, 1, 1])[None, :, None], (2, 4, 1))
    return xr.Dataset(
        {
            "diagram_test_loss": (cells, np.where(broken, np.nan, 1.0)),
            "diagram_diverged": (cells, broken),
            "diagram_critical_learning_rate": (("closure", "gamma"), [[3.0, 40.0]]),
        },
        coords={
            "gamma": [0.5, 1.0],
            "learning_rate": [0.1, 1.0, 10.0, 100.0],
            "diagram_seed": [0],
            "closure": ["train"],
        },
    )


def test_distance_of_theory_is_given_as_a_factor():
    settings = {"diagram_settings": '{"loss": "squared_error", "epochs": 2.0}'}
    (named,) = about_diagram(diagram().assign_attrs(settings))
    assert named.startswith("8 short trainings (squared error, 2 epochs) over the scale of")
    (first,) = about_diagram(diagram())
    assert first.startswith("8 short trainings over the scale of BatchNorm and the learning rate")
    assert "within a factor of 2 of the measured one at 1 of 2 scales" in first
    assert "at worst a factor of 12.6 away" in first  # 40 / sqrt(1 * 10)
    assert "rates of the grid are a factor of 10.0 apart" in first
    (table,) = tables_of("diagram", diagram())
    assert table.rows[1] == pytest.approx([1.0, np.sqrt(10), 40.0, 40 / np.sqrt(10)])


def test_first_screen_follows_the_numbers(results):
    checks = xr.Dataset(
        {
            "statement": ("verdict", ["theorem_4_1", "fact_c1", "theorem_4_1"]),
            "form": ("verdict", ["exact", "exact", "printed"]),
            "norm_layer": ("verdict", ["a", "a", "a"]),
            "refuted": ("verdict", [0, 0, 1]),
        },
        coords={"verdict": range(3)},
    )
    whole = xr.merge([results, checks, diagram()])
    limits, training, landscape, curvature, theory = findings(whole)
    assert (
        "largest with BatchNorm, 3, and smallest without normalization, 0.15: a factor of 20"
        in limits
    )
    assert (
        # 4 / 1.5 in seed 1, where the medians are 3 and 1.5
        "within 2.00x of every limit (median over seeds; worst 2.67x)." in limits
    )
    alone = findings(whole.isel(seed=[0]))[0]
    assert alone.endswith("within 2.00x of every limit.")
    assert (
        "diverges without normalization (1 of 2 seeds); at half its own limit, training" in training
    )
    assert "varies most without normalization, 2, and least with BatchNorm, 1." in landscape
    assert "largest without normalization, 9, and smallest with BatchNorm, 2." in curvature
    assert "hold in all 2 checks; as printed, Theorem 4.1 fails." in theory
    assert "at 1 of 2 scales of BatchNorm, at worst a factor of 12.6 away." in theory
    turned = findings(swapped(whole))
    assert "largest without normalization, 3, and smallest with BatchNorm, 0.15" in turned[0]
    assert "varies most with BatchNorm, 2, and least without normalization, 1." in turned[2]


def test_note_on_rates_says_that_short_runs_may_lower_what_is_stable_at_first(results):
    """`Advice.curvature_bound` is the curvature's bound only where no run failed below it."""
    missing = {"limit", "stable", "predicted", "recommended"} - {*map(str, results)}
    found = tables_of("limits", results.assign(dict.fromkeys(missing, results["curvature_bound"])))
    note = next(each.note for each in found if "curvature bound" in each.columns)
    assert "where a short run broke below that, at most half of the lowest rate that broke" in note


def test_headline_gives_the_ratio_to_the_bare_net(results):
    assert headline(results) == (
        "Training breaks at a learning rate of 3 with BatchNorm, 20 times the limit without "
        "normalization (0.15)."
    )
    assert headline(swapped(results)) == (
        "Training breaks at a learning rate of 0.15 with BatchNorm, 0.05 times the limit without "
        "normalization (3)."
    )
    alone = headline(results.sel(norm=["batch"]))
    assert alone == "Training breaks at a learning rate of 3 (2 to 4) with BatchNorm."


def test_headline_claims_no_difference_on_which_the_seeds_disagree(results):
    mixed = results.assign(limit=(CELL, [[1.0, 3.0], [2.0, 2.5]]))
    assert headline(mixed) == (
        "Training breaks at a learning rate of 2.2 with BatchNorm. That is not clearly different "
        "from the limit without normalization (2): the seeds disagree."
    )


def test_cards_give_limits_ratios_and_half_of_them(results):
    closed = results.assign(recommended=results["limit"] / 2, unstable=results["limit"])
    found = [(card.label, card.value, card.note) for card in cards(closed)]
    assert found == [
        ("no normalization", "0.15", "limit, recommended 0.075"),
        ("BatchNorm", "3", "limit (20x), recommended 1.5"),
    ]
    is_open = cards(closed.assign(unstable=results["unstable"]))[1]
    assert (is_open.value, is_open.note) == ("≥ 3", "limit, recommended 1.5")


def test_at_most_five_cards_with_the_bare_net_among_them(results):
    limits = xr.DataArray(np.arange(1.0, 8.0), dims="norm").expand_dims(seed=2).T
    norms = ["none", "batch", "noisy", "l1", "l2", "layer", "rms"]
    many = xr.Dataset(dict.fromkeys(("limit", "recommended", "unstable"), limits))
    found = [card.label for card in cards(many.assign_coords(norm=norms, seed=[0, 1]))]
    assert found == ["no normalization", "l1 norm", "l2 norm", "LayerNorm", "RMSNorm"]
