"""Verdicts follow the numbers: turned around, they turn around."""

import numpy as np
import pytest
import xarray as xr

from normscope.experiments.santurkar2018 import claims as statements
from normscope.experiments.santurkar2018.figures import figure1_claims as claims_of_figure1
from normscope.experiments.santurkar2018.judging import compared, verdict

SEEDS, STEPS, LAYERS, UNITS, POINTS = 3, 8, 4, 2, 3
SOURCE = "santurkar2018, a test"
RAY = ("loss_low", "loss_high", "gradient_distance_high", "effective_smoothness")


def random(generator, *shape):
    return generator.uniform(0.9, 1.1, shape)


@pytest.fixture
def results():
    """Two networks: "batch" trains better, is smoother, shifts more and moves further."""
    generator = np.random.default_rng(0)
    factor = np.array([10.0, 1.0])[:, None, None]
    curve = ("norm", "seed", "step")
    small = factor * random(generator, 2, SEEDS, STEPS)
    large = (11 - factor) * random(generator, 2, SEEDS, STEPS)
    of_layers = large[..., None] * random(generator, 2, SEEDS, STEPS, LAYERS)
    of_units = of_layers[..., None] * np.ones(UNITS)
    drifting = of_units * np.arange(STEPS)[:, None, None]
    variables = {
        "training_loss": (curve, small),
        "loss_low": (curve, np.zeros_like(small)),
        "loss_high": (curve, small),
        "gradient_distance_high": (curve, small),
        "effective_smoothness": (curve, small),
        "gradient_distance": ((*curve, "distance"), small[..., None] * np.ones(POINTS)),
        "shift_cosine": ((*curve, "layer"), 1 - of_layers / 20),
        "shift_distance": ((*curve, "layer"), of_layers),
        "activation_mean_change": ((*curve, "layer", "unit"), of_units),
        "activation_variance_change": ((*curve, "layer", "unit"), of_units),
        "activation_mean": ((*curve, "layer", "unit"), drifting),
        "activation_variance": ((*curve, "layer", "unit"), drifting**2),
    }
    return xr.Dataset(variables, {"norm": ["none", "batch"], "seed": range(SEEDS)})


JUDGES = {
    "trains_better": lambda data: [statements.trains_better(data, "batch", SOURCE, "net")],
    "is_smoother": lambda data: statements.is_smoother(data, "batch", SOURCE, "net", True),
    "is_smoother_throughout": lambda data: statements.is_smoother(
        data, "batch", SOURCE, "net", False
    ),
    "predicts_better": lambda data: [
        statements.predicts_better(data, "batch", SOURCE, "net", True)
    ],
    "shifts_no_less": lambda data: statements.shifts_no_less(data, SOURCE, "net"),
    "changes_moments_more": lambda data: statements.changes_moments_more(data, "batch", SOURCE),
    "drifts_more": lambda data: [statements.drifts_more(data, "batch", SOURCE)],
}


@pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)
def test_verdict_flips_when_the_networks_change_places(judge, results):
    turned = results.assign_coords(norm=["batch", "none"])
    assert [claim.holds for claim in judge(results)] == [True] * len(judge(results))
    assert [claim.holds for claim in judge(turned)] == [False] * len(judge(turned))


@pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)
def test_seeds_that_disagree_or_are_few_leave_it_open(judge, results):
    turned = results.assign_coords(norm=["batch", "none"])
    mixed = xr.concat(
        [results.isel(seed=[0, 1]), turned.sel(norm=["none", "batch"]).isel(seed=[2])],
        "seed",
        data_vars="all",
    )
    assert {claim.holds for claim in judge(mixed)} == {None}
    assert {claim.holds for claim in judge(results.isel(seed=[0, 1]))} == {None}


def test_similar_shift_is_enough(results):
    """Equal shifts are "similar or worse"; a cosine higher by 0.1 or half the l2 are not."""
    equal = results.copy()
    for name in ("shift_cosine", "shift_distance"):
        equal[name] = xr.ones_like(results[name]) * 0.5
    assert [c.holds for c in statements.shifts_no_less(equal, SOURCE, "net")] == [True, True]
    better = equal.copy(deep=True)
    better["shift_cosine"].loc[{"norm": "batch"}] = 0.6
    better["shift_distance"].loc[{"norm": "batch"}] = 0.25
    assert [c.holds for c in statements.shifts_no_less(better, SOURCE, "net")] == [False, False]


@pytest.mark.parametrize(("loss", "holds"), [(1.0, True), (1.8, True), (2.2, False), (0.1, True)])
def test_as_well_allows_a_tenth_of_what_batch_norm_shed(loss, holds):
    """BatchNorm falls from 11 to 1: up to 2 counts as well."""
    steps, ends = 8, {"batch": 1.0, "l1": loss}
    curves = np.full((2, 3, steps), 11.0)
    for place, end in enumerate(ends.values()):
        curves[place, :, 1:] = end
    coordinates = {"norm": list(ends), "seed": range(3)}
    data = xr.Dataset({"training_loss": (("norm", "seed", "step"), curves)}, coordinates)
    assert statements.trains_as_well(data, "l1", SOURCE, "net").holds is holds


def test_divergence_is_worse_than_any_loss(results):
    results["training_loss"].loc[{"norm": "none", "step": slice(5, None)}] = np.nan
    claim = statements.trains_better(results, "batch", SOURCE, "net")
    assert claim.holds is True
    assert "inf" in claim.measured
    worse = statements.trains_better(results, "none", SOURCE, "net", over="batch")
    assert worse.holds is False


def test_runs_that_were_not_made_are_no_divergence(results):
    results["training_loss"].loc[{"norm": "none"}] = np.nan
    claim = statements.trains_better(results, "batch", SOURCE, "net")
    assert claim.holds is None
    assert "standard not measured; 0 of 3 seeds (undecided" in claim.measured


@pytest.mark.parametrize("judge", ["is_smoother", "is_smoother_throughout", "predicts_better"])
def test_runs_without_the_ray_decide_nothing(judge, results):
    """The standard network's trainings are there, but nothing on their rays."""
    results = results.copy(deep=True)  # variables of the fixture share their numbers
    for name in (*RAY, "gradient_distance"):
        results[name].loc[{"norm": "none"}] = np.nan
    for claim in JUDGES[judge](results):
        assert claim.holds is None
        assert "standard not measured; 0 of 3 seeds (undecided" in claim.measured
    results["training_loss"].loc[{"norm": "none", "step": slice(5, None)}] = np.nan
    assert {claim.holds for claim in JUDGES[judge](results)} == {True}  # they diverged


def test_two_divergences_decide_nothing_in_favour():
    infinite = xr.DataArray([np.inf] * 3, dims="seed")
    assert compared("a", SOURCE, infinite, infinite, ("a", "b")).holds is False


def test_verdict_needs_three_seeds():
    assert verdict(np.array([True, True])) is None
    assert verdict(np.array([False] * 3)) is False


@pytest.mark.parametrize(
    ("accuracies", "settings", "holds"),
    [
        ((0.84, 0.79), {}, True),
        ((0.855, 0.79), {}, False),
        (([0.84, 0.84, 0.80], 0.79), {}, None),
        (([0.84, 0.84, np.nan], 0.79), {}, None),
        ((np.nan, np.nan), {}, None),
        ((0.84, 0.79), {"evaluated": 1000}, None),
        ((0.84, 0.79), {"steps": 300}, None),
        ((0.84, 0.79), {"width": 0.125}, None),
    ],
)
def test_printed_accuracy_is_judged_at_the_papers_settings_only(accuracies, settings, holds):
    batch, none = accuracies
    dimensions = ("norm", "learning_rate", "seed")
    by_seed = np.stack([np.broadcast_to(values, 3) for values in (none, batch)])
    final = np.broadcast_to(by_seed[:, None], (2, 2, 3))
    losses = np.ones((2, 2, 3, 4))
    data = xr.Dataset(
        {
            "final_test_accuracy": (dimensions, final),
            "training_loss": ((*dimensions, "step"), losses),
        },
        {"norm": ["none", "batch"], "learning_rate": [0.1, 0.5], "seed": range(3)},
        {"data": "cifar10", "width": 1.0, "steps": 15_000, "evaluated": 10_000} | settings,
    )
    assert claims_of_figure1(data)[-1].holds is holds
