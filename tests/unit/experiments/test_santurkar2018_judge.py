"""Verdicts follow the numbers: turned around, they turn around."""

import numpy as np
import pytest
import xarray as xr
from tests.references.santurkar2018 import BOTH, LINEAR, claims_of

from normscope.experiments import EXPERIMENTS

SEEDS, STEPS, LAYERS, UNITS, POINTS = 3, 8, 4, 2, 3
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


JUDGED = (2, 3, 4, 6, 7, 9, 10, 11, 12, 14)  # figures that find one network better
COUNTS = {2: 2, 3: 6, 4: 3, 6: 4, 7: 3, 9: 3, 10: 2, 11: 16, 12: 16, 14: 3}


@pytest.mark.parametrize("figure", JUDGED)
def test_verdict_flips_when_the_networks_change_places(figure, results):
    turned = results.assign_coords(norm=["batch", "none"])
    assert [claim.holds for claim in claims_of(figure, results)] == [True] * COUNTS[figure]
    assert [claim.holds for claim in claims_of(figure, turned)] == [False] * COUNTS[figure]


@pytest.mark.parametrize("figure", JUDGED)
def test_seeds_that_disagree_or_are_few_leave_it_open(figure, results):
    turned = results.assign_coords(norm=["batch", "none"]).sel(norm=["none", "batch"])
    mixed = xr.concat([results.isel(seed=[0, 1]), turned.isel(seed=[2])], "seed", data_vars="all")
    assert {claim.holds for claim in claims_of(figure, mixed)} == {None}
    for few in (results.isel(seed=[0, 1]), turned.isel(seed=[0, 1])):
        assert {claim.holds for claim in claims_of(figure, few)} == {None}


@pytest.mark.parametrize("figure", JUDGED)
def test_claims_name_their_figure_and_network(figure, results):
    claims = claims_of(figure, results)
    assert {claim.source for claim in claims} == {f"santurkar2018, Figure {figure}"}
    named = "DLN" if figure in LINEAR else "VGG"
    networks = {"VGG", "DLN"} if figure in BOTH else {named}
    found = {each for each in ("VGG", "DLN") if any(each in claim.text for claim in claims)}
    assert found == (set() if figure == 14 else networks)  # Figure 14 is about activations


def test_similar_shift_is_enough(results):
    """Equal shifts are "similar or worse"; a cosine higher by 0.1 or half the l2 are not."""
    equal = results.copy()
    for name in ("shift_cosine", "shift_distance"):
        equal[name] = xr.ones_like(results[name]) * 0.5
    assert [claim.holds for claim in claims_of(6, equal)] == [True] * 4
    better = equal.copy(deep=True)
    better["shift_cosine"].loc[{"norm": "batch"}] = 0.6
    better["shift_distance"].loc[{"norm": "batch"}] = 0.25
    assert [claim.holds for claim in claims_of(6, better)] == [False] * 4


@pytest.mark.parametrize(("loss", "holds"), [(1.0, True), (1.8, True), (2.2, False), (0.1, True)])
def test_as_well_allows_a_tenth_of_what_batch_norm_shed(loss, holds):
    """BatchNorm falls from 11 to 1: up to 2 counts as well."""
    steps, ends = 8, {"batch": 1.0, "l1": loss}
    curves = np.full((2, 3, steps), 11.0)
    for place, end in enumerate(ends.values()):
        curves[place, :, 1:] = end
    coordinates = {"norm": list(ends), "seed": range(3)}
    data = xr.Dataset({"training_loss": (("norm", "seed", "step"), curves)}, coordinates)
    verdicts = {claim.text: claim.holds for claim in claims_of(13, data)}
    for network in ("VGG", "DLN"):
        text = f"{network} trains with the {{}} as well as with BatchNorm or better"
        assert verdicts[text.format("l1 norm")] is holds
        assert verdicts[text.format("l2 norm")] is True


def test_divergence_is_worse_than_any_loss(results):
    results["training_loss"].loc[{"norm": "none", "step": slice(5, None)}] = np.nan
    for claim in claims_of(2, results):
        assert claim.holds is True
        assert "inf" in claim.measured
    turned = results.assign_coords(norm=["batch", "none"])
    assert [claim.holds for claim in claims_of(2, turned)] == [False, False]


def test_runs_that_were_not_made_are_no_divergence(results):
    results["training_loss"].loc[{"norm": "none"}] = np.nan
    for claim in claims_of(2, results):
        assert claim.holds is None
        assert "standard not measured; 0 of 3 seeds (not measured" in claim.measured


@pytest.mark.parametrize("figure", [4, 9, 10])
def test_runs_without_the_ray_decide_nothing(figure, results):
    """The standard network's trainings are there, but nothing on their rays."""
    results = results.copy(deep=True)  # variables of the fixture share their numbers
    for name in (*RAY, "gradient_distance"):
        results[name].loc[{"norm": "none"}] = np.nan
    for claim in claims_of(figure, results):
        assert claim.holds is None
        assert "standard not measured; 0 of 3 seeds (not measured" in claim.measured
    results["training_loss"].loc[{"norm": "none", "step": slice(5, None)}] = np.nan
    assert {claim.holds for claim in claims_of(figure, results)} == {True}  # they diverged


def test_equal_losses_are_not_better(results):
    equal = results.assign(training_loss=xr.ones_like(results["training_loss"]))
    assert [claim.holds for claim in claims_of(2, equal)] == [False, False]


def test_two_divergences_decide_nothing_in_favour(results):
    results["training_loss"].loc[{"step": slice(5, None)}] = np.nan
    assert [claim.holds for claim in claims_of(2, results)] == [False, False]


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
    *_, accuracy = EXPERIMENTS["santurkar2018/figure1"].claims(data)
    assert accuracy.holds is holds
