"""The demo's sentences, cards and tables follow the numbers, whichever way these come out."""

import numpy as np
import pytest
import xarray as xr

from normscope.experiments.tour.page import PARTS, cards
from normscope.experiments.tour.summary import extremes, findings, headline

CELL = ("norm", "seed")


def checks():
    """Five verdicts, of which one in the printed form fails."""
    columns = {
        "statement": ["theorem_4_1", "theorem_4_1", "fact_c1", "theorem_4_1", "fact_c1"],
        "form": ["exact", "exact", "exact", "printed", "printed"],
        "norm_layer": ["a", "b", "b", "a", "a"],
        "refuted": [0, 0, 0, 1, 0],
        "slack": [0.0, 0.0, 0.0, -0.25, 0.0],
    }
    return {name: ("verdict", values) for name, values in columns.items()}


def diagram():
    """Trainings that break between 1 and 10 at both scales; theory says 3 and 40."""
    cells = ("gamma", "learning_rate", "diagram_seed")
    broken = np.broadcast_to(np.array([0, 0, 1, 1])[None, :, None], (2, 4, 1))
    return {
        "diagram_test_loss": (cells, np.where(broken, np.nan, 1.0)),
        "diagram_diverged": (cells, broken),
        "diagram_critical_learning_rate": (("closure", "gamma"), [[3.0, 40.0]]),
    }


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
            "recommended": (CELL, [[0.05, 0.1], [1.0, 2.0]]),
            "stable": (CELL, [[0.09, 0.19], [1.9, 4.0]]),
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
            "shift_distance": ((*CELL, "step", "layer"), np.full((2, 2, 3, 2), 0.1)),
            "lambda_max": (("norm", "mode"), [[9.0, 9.0, 9.0], [2.0, 4.0, np.nan]]),
            "lowest": ("norm", [-3.0, 0.0]),
            "highest": ("norm", [9.0, 2.0]),
            "growth": (CELL, [[1.0, 1.0], [1.4, 1.6]]),
            "growth_with_skips": ("seed", [1.1, 1.2]),
            "expected_growth": 1.48,
            "gradient_norm": ((*CELL, "depth_layer"), np.ones((2, 2, 6))),
            "common_rate": 0.05,
            **checks(),
            **diagram(),
        },
        coords={
            "norm": ["none", "batch"],
            "seed": [0, 1],
            "step": [0, 1, 2],
            "layer": ["a", "b"],
            "mode": ["train", "frozen", "eval"],
            "training_step": range(20),
            "depth_layer": range(1, 7),
            "gamma": [0.5, 1.0],
            "learning_rate": [0.1, 1.0, 10.0, 100.0],
            "diagram_seed": [0],
            "closure": ["train"],
        },
    )


def swapped(results):
    """The same with the two normalizations' numbers exchanged."""
    return results.assign_coords(norm=["batch", "none"]).sel(norm=["none", "batch"])


def closed(results):
    """The same with an end of every limit."""
    return results.assign(unstable=results["limit"])


def table(part, results):
    """The table of a part: its rows by their names, and the table itself."""
    found = PARTS[part].table(results)
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    return rows, found


def test_headline_gives_the_ratio_to_the_bare_net(results):
    assert headline(closed(results)) == (
        "Training breaks at a learning rate of 3 with BatchNorm, 20 times the limit without "
        "normalization (0.15)."
    )
    assert headline(swapped(closed(results))) == (
        "Training breaks at a learning rate of 0.15 with BatchNorm, 0.05 times the limit without "
        "normalization (3)."
    )
    alone = headline(closed(results).sel(norm=["batch"]))
    assert alone == "Training breaks at a learning rate of 3 with BatchNorm."


def test_headline_gives_no_ratio_where_a_limit_has_no_end(results):
    assert headline(results) == (
        "Training breaks at a learning rate of at least 3 with BatchNorm, against the limit "
        "without normalization (0.15)."
    )
    assert headline(swapped(results)).endswith("without normalization (at least 3).")


def test_headline_claims_no_difference_on_which_the_seeds_disagree(results):
    mixed = results.assign(limit=(CELL, [[1.0, 3.0], [2.0, 2.5]]))
    assert headline(closed(mixed)) == (
        "Training breaks at a learning rate of 2.2 with BatchNorm. That is not clearly different "
        "from the limit without normalization (2): the seeds disagree."
    )


def test_cards_give_limits_ratios_and_half_of_them(results):
    found = [(card.label, card.value, card.note) for card in cards(closed(results))]
    assert found == [
        ("no normalization", "0.15", "limit, recommended 0.075"),
        ("BatchNorm", "3", "limit (20x), recommended 1.5"),
    ]
    is_open = cards(results)[1]
    assert (is_open.value, is_open.note) == ("≥ 3", "limit, recommended 1.5")


def test_at_most_five_cards_with_the_bare_net_among_them(results):
    limits = xr.DataArray(np.arange(1.0, 8.0), dims="norm").expand_dims(seed=2).T
    norms = ["none", "batch", "noisy", "l1", "l2", "layer", "rms"]
    many = xr.Dataset(dict.fromkeys(("limit", "recommended", "unstable"), limits))
    found = [card.label for card in cards(many.assign_coords(norm=norms, seed=[0, 1]))]
    assert found == ["no normalization", "l1 norm", "l2 norm", "LayerNorm", "RMSNorm"]


def test_extremes_follow_the_numbers_and_say_where_seeds_disagree():
    """LayerNorm has the largest median, but in seed 2 the bare net's is larger."""
    widths = [[0.03, 0.03, 0.048], [0.01, 0.01, 0.01], [0.05, 0.05, 0.0462]]
    norms, seeds = ["none", "batch", "layer"], [0, 1, 2]
    values = xr.DataArray(widths, [("norm", norms), ("seed", seeds)])
    shown = "largest with LayerNorm (0.05), smallest with BatchNorm (0.01)"
    assert extremes(values) == f"{shown}; the seeds disagree"
    assert extremes(values.isel(seed=[0, 1])) == shown
    assert extremes(-values.isel(seed=[0])).startswith("largest with BatchNorm (-0.01), smallest")
    assert extremes(values.where(values > 0.02)).startswith("largest with BatchNorm (infinite)")
    assert extremes(0 * values) == "0 everywhere"
    assert extremes(values.sel(norm=["batch"])) == "0.01 with BatchNorm"


def test_prediction_is_given_by_its_worst_median_and_its_worst_seed(results):
    # 4 / 1.5 in seed 1, where the medians are 3 and 1.5
    assert "within 2.00x of the verified one (median" in findings(results)["limits"]
    assert "worst seed 2.67x" in findings(results)["limits"]
    assert findings(results.isel(seed=[0]))["limits"].endswith("within 2.00x of the verified one.")
    some = results.assign(predicted=results["predicted"].where(results["norm"] == "none"))
    assert "within 1.33x" in findings(some)["limits"]
    none = findings(results.assign(predicted=np.nan * results["predicted"]))["limits"]
    assert none == "No limit could be predicted before a run."


def test_rates_say_what_theory_does_not_cover_and_where_no_end_was_found(results):
    rows, found = table("limits", results)
    assert "No estimate with BatchNorm: no such layer." in found.note
    assert "No estimate without" not in found.note
    assert "where a short run broke below that, at most half of the lowest rate" in found.note
    assert [(row["normalization"], row["seed"], row["breaks"]) for row in rows[2:]] == [
        ("BatchNorm", 0, 3.0),
        ("BatchNorm", 1, None),
    ]


def test_divergences_are_counted_and_numbers_have_their_range(results):
    assert (
        "training diverges without normalization (1 of 2 seeds); at half its own limit, "
        in (findings(results)["training"])
    )
    calm = results.assign(outcome=(CELL, [["finished"] * 2] * 2))
    assert findings(calm)["training"].endswith("at half its own limit, no training diverges.")
    (none, batch), found = table("training", results)
    assert none["test accuracy"] == pytest.approx(0.85)
    assert none["range over the seeds"] == "0.8 to 0.9"
    assert (none["seeds that diverge"], none["seeds that diverge, shared rate"]) == (0, 1)
    assert batch["test accuracy"] is None  # a seed diverged
    assert batch["range over the seeds"] == "0.95 to 0.95 (1 seed)"
    assert found.note.startswith("-: no finite number")
    one, _ = table("training", results.isel(seed=[0]))
    assert "range over the seeds" not in one[0]


def test_landscape_is_infinite_where_most_steps_are(results):
    (none, batch), _ = table("landscape", results)
    assert (none["loss varies by"], batch["loss varies by"]) == (2.0, 1.0)
    assert (none["roughness (beta)"], batch["roughness (beta)"]) == (1.0, None)


def test_eigenvalues_are_of_one_seed_and_of_every_mode(results):
    (_, batch), found = table("curvature", results)
    assert found.caption.endswith("; first seed alone")
    assert [batch["largest eigenvalue"], batch["statistics held fixed"]] == [2.0, 4.0]
    assert batch["in eval mode"] is None


def test_theorems_that_fail_are_named_with_their_counts(results):
    sentence = findings(results)["theorems"]
    assert "all 3 checks" in sentence
    assert sentence.endswith("; as printed, Theorem 4.1 in 0 of 1.")
    rows, found = table("theorems", results)
    assert "on the 2 BatchNorm layers" in found.caption
    assert found.rows[2] == ["Theorem 4.1", "as printed, without eps", 0, 1, 0.25]
    assert [row["hold"] for row in rows] == [2, 1, 0, 1]
    broken = results.assign(refuted=("verdict", [1, 0, 0, 1, 0]))
    assert "2 of 3 checks" in findings(broken)["theorems"]


def test_distance_of_theory_is_given_as_a_factor(results):
    sentence = findings(results)["diagram"]
    assert "within a factor of 2 at 1 of 2 scales" in sentence
    assert "at worst a factor of 12.6" in sentence  # 40 / sqrt(1 * 10)
    _, found = table("diagram", results)
    assert found.rows[1] == pytest.approx([1.0, np.sqrt(10), 40.0, 40 / np.sqrt(10)])
    assert "a factor of 10.0 apart" in found.note
    stable = results.assign(diagram_diverged=0 * results["diagram_diverged"])
    assert findings(stable)["diagram"].startswith("No scale")
