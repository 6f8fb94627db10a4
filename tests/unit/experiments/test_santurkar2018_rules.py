"""The rules of santurkar2018's verdicts on numbers worked out by hand; one seed, no three alike."""

import numpy as np
import pytest
import xarray as xr
from tests.references.santurkar2018 import claims_of

from normscope.experiments import EXPERIMENTS

CURVE = ("norm", "seed", "step")
LANDSCAPE = ("loss_width", "gradient_distance_high", "effective_smoothness")
UNEVEN = (0, 1, 2, 3, 13)  # they weigh 1, 1, 1, 5.5 and 10 of 18.5


def curves(batch, none, steps=None, dimensions=(), norms=("none", "batch")):
    """Both networks' numbers over step and further dimensions, of one seed."""
    values = np.array([none, batch], dtype=float)[:, None]
    coordinates = {"norm": list(norms), "seed": [0]}
    if steps is not None:
        coordinates["step"] = list(steps)
    return xr.DataArray(values, coordinates, (*CURVE, *dimensions))


def landscape(batch, none, steps=None, **others):
    """All three numbers of the landscape alike; the band starts at 100 with BatchNorm."""
    found = {name: curves(batch, none, steps) for name in LANDSCAPE}
    low = curves(np.full(len(batch), 100.0), np.zeros(len(none)), steps)
    high = found.pop("loss_width") + low
    return xr.Dataset({**found, "loss_low": low, "loss_high": high, **others})


def smoother(data, second_half=False):
    """Claims of the deep linear network by all steps, or of VGG by the second half of them."""
    return claims_of(4 if second_half else 9, data)


@pytest.mark.parametrize("steps", [UNEVEN, range(0, 50, 10), range(0, 60, 10), (4,)])
def test_pooling_is_that_of_steps_repeated_by_their_weight(steps):
    """A step weighs half the distance to both neighbours, at the ends the distance to the one."""
    times = np.array(steps)
    weights = np.ones(1) if len(times) == 1 else np.gradient(times.astype(float))
    values = np.random.default_rng(3).uniform(1, 2, (len(steps), 4))
    repeated = np.repeat(values, np.round(2 * weights).astype(int), axis=0)
    cosine, distance = shift(shifted(values, values, steps, cosines=(values, values)))
    mean, geometric = repeated[:, 1:].mean(), np.exp(np.log(repeated[:, 1:]).mean())
    assert cosine.startswith(f"BatchNorm {mean:.3g}, standard {mean:.3g};")
    assert distance.startswith(f"standard {geometric:.3g}, BatchNorm {geometric:.3g};")
    change = curves(values[..., None], values[..., None], steps, ("layer", "unit"))
    median = f"standard {np.median(repeated):.3g}, noisy BatchNorm {np.median(repeated):.3g};"
    assert {claim.measured[: len(median)] for claim in moments(change)} == {median}


def test_steps_without_a_number_give_their_weight_to_their_neighbours():
    """Measured at 0, 1 and 4, which weigh 1, 2 and 3; with equal weights both would be 6."""
    values = np.array([9.0, 6.0, np.nan, np.nan, 3.0])
    layers = np.stack([values, values], axis=1)
    cosine, _ = shift(shifted(layers, layers, range(5), cosines=(layers, layers)))
    assert cosine.startswith("BatchNorm 5, standard 5;")
    change = curves(values[:, None, None], values[:, None, None], range(5), ("layer", "unit"))
    assert all(claim.measured.startswith("standard 4.5, noisy") for claim in moments(change))


def test_landscape_is_the_weighted_median():
    """The plain medians are 7 and 5, the least values 1 and 0: both would turn the verdict."""
    data = landscape([9, 8, 7, 1, 3], [5, 5, 5, 0, 4], UNEVEN)
    expected = "BatchNorm 3, standard 4; 1 of 1 seeds"
    assert [claim.measured for claim in smoother(data)] == [expected] * 3


def test_second_half_is_judged_where_it_is_asked_for():
    data = landscape([50, 60, 70, 1, 3, 8], [5, 6, 7, 20, 30, 90])
    halves = "BatchNorm 3, standard 30; 1 of 1 seeds (over all steps: 29 against 13.5)"
    whole = "BatchNorm 29, standard 13.5; 0 of 1 seeds"
    assert {claim.measured for claim in smoother(data, second_half=True)} == {halves}
    assert {claim.measured for claim in smoother(data)} == {whole}


def test_ray_that_leaves_the_numbers_is_infinite():
    values = [1.0, np.nan, np.inf]
    (claim, *_) = smoother(landscape(values, [2.0, 2.0, 2.0]))
    assert claim.measured == "BatchNorm inf to inf, standard 2; 0 of 1 seeds"
    everywhere = landscape([np.inf] * 3, [2.0] * 3)
    everywhere["loss_low"].loc[{"norm": "batch"}] = np.inf
    for claim in smoother(everywhere):
        assert claim.measured == "BatchNorm inf to inf, standard 2; 0 of 1 seeds"


def test_ray_of_a_run_that_diverged_is_infinite():
    losses = curves([1.0, np.nan, np.nan], [1.0] * 3)
    for claim in smoother(landscape([np.nan] * 3, [2.0] * 3, training_loss=losses)):
        assert claim.measured == "BatchNorm inf to inf, standard 2; 0 of 1 seeds"


@pytest.mark.parametrize("loss", [1.0, np.nan])
def test_ray_that_was_not_measured_is_said_to_be(loss):
    """Whether the run was made without the ray's probes or not made at all."""
    losses = curves([loss] * 3, [1.0] * 3)
    expected = "BatchNorm not measured, standard 2; 0 of 1 seeds (not measured in 1"
    for claim in smoother(landscape([np.nan] * 3, [2.0] * 3, training_loss=losses)):
        assert claim.measured.startswith(expected)


def test_predictiveness_is_the_mean_over_distances_of_weighted_medians():
    """By distance 3 and 9 with BatchNorm, 4 and 6 without: the least ones would turn it."""
    by_step = np.array([[9, 20], [8, 20], [7, 20], [1, 2], [3, 9]])
    data = xr.Dataset({"gradient_distance": curves(by_step, [[4, 6]] * 5, UNEVEN, ("distance",))})
    vgg, linear = claims_of(10, data)
    assert linear.measured == "BatchNorm 6, standard 5; 0 of 1 seeds"
    vgg, linear = claims_of(10, data.isel(step=[0, 4]))
    assert vgg.measured == (
        "BatchNorm 6, standard 5; 0 of 1 seeds (over all steps: 10.2 against 5)"
    )


def shifted(batch, none, steps=None, cosines=None):
    distance = curves(batch, none, steps, ("layer",))
    cosine = distance / 100 if cosines is None else curves(*cosines, steps, ("layer",))
    return xr.Dataset({"shift_cosine": cosine, "shift_distance": distance})


def shift(data):
    """What was measured of VGG; the linear network has the same numbers."""
    cosine, distance, *linear = (claim.measured for claim in claims_of(6, data))
    assert linear == [cosine, distance]
    return cosine, distance


def moments(change):
    """Claims about the changes of mean and variance, both given alike."""
    names = ("activation_mean_change", "activation_variance_change")
    losses = xr.ones_like(change.isel(layer=0, unit=0))
    data = xr.Dataset({**dict.fromkeys(names, change), "training_loss": losses})
    return claims_of(7, data)[:2]


def test_shift_is_pooled_over_weighted_steps_and_all_layers_but_the_first():
    """Weights 1, 1, 4.5, 8 of 14.5; the first layer's 1000 and 1e6 count nowhere."""
    steps = (0, 1, 2, 10)
    weights = np.array([1, 1, 4.5, 8]) / 14.5
    batch = np.array([[1e3, 1, 100], [1e3, 4, 4], [1e3, 16, 4], [1e3, 2, 8]])
    none = np.array([[1e6, 50, 50]] * 4)
    cosine, distance = shift(shifted(batch, none, steps))
    mean = (weights * batch[:, 1:].mean(axis=1)).sum() / 100
    geometric = np.exp((weights * np.log(batch[:, 1:]).mean(axis=1)).sum())
    assert cosine == f"BatchNorm {mean:.3g}, standard 0.5; 1 of 1 seeds"
    assert distance == f"standard 50, BatchNorm {geometric:.3g}; 0 of 1 seeds"


def test_zero_difference_does_not_decide_the_shift():
    data = shifted([[5, 0], [5, 4], [5, 16]], [[5, 6], [5, 6], [5, 6]])
    left_out = " (left out: 1 differences of zero)"
    assert shift(data)[1] == f"standard 6, BatchNorm 8; 1 of 1 seeds{left_out}"
    assert left_out not in shift(data)[0]


def test_shift_says_which_steps_it_does_without_after_a_divergence():
    data = shifted([[5, 9], [5, 4]], [[5, 6], [np.nan, np.nan]])
    expected = " (left out: 1 steps without a number, as after a divergence)"
    assert shift(data)[1] == f"standard 6, BatchNorm 6; 1 of 1 seeds{expected}"


def test_shift_of_one_layer_is_undecided():
    claims = claims_of(6, shifted([[5.0]] * 3, [[5.0]] * 3))
    assert [claim.holds for claim in claims] == [None] * 4
    assert all("not measured" in claim.measured for claim in claims)


def test_training_is_judged_by_its_last_quarter():
    data = xr.Dataset({"training_loss": curves([100] * 6 + [1, 3], [10] * 7 + [20])})
    _, claim = claims_of(2, data)
    assert claim.measured == "BatchNorm 2, standard 15; 1 of 1 seeds"


def test_as_well_tells_what_the_standard_network_does():
    """BatchNorm falls from 11 to 1: the standard network's 1.9 would pass."""
    losses = np.full((3, 1, 4), 11.0)
    losses[:, :, 1:] = np.array([1.0, 1.5, 1.9])[:, None, None]
    data = xr.Dataset({"training_loss": (CURVE, losses)}, {"norm": ["batch", "l1", "none"]})
    claim = claims_of(13, data)[0]
    expected = "l1 norm 1.5, BatchNorm 1; 1 of 1 seeds (standard 1.9, as well in 1 of 1 seeds)"
    assert claim.measured == expected


def test_drift_is_the_distance_of_normal_distributions():
    """From (0, 1) with deviations 1 to means 3 and deviations 5: sqrt(9 + 16) = 5; without: 4."""
    of_unit = ("layer", "unit")
    mean = curves([[[0]], [[3]], [[3]]], [[[0]], [[4]], [[4]]], None, of_unit)
    variance = curves([[[1]], [[25]], [[25]]], [[[1]], [[1]], [[1]]], None, of_unit)
    data = xr.Dataset({"activation_mean": mean, "activation_variance": variance})
    claim = claims_of(14, data)[0]
    assert claim.measured == "standard 4, l1 norm 5; 1 of 1 seeds"


def test_drift_leaves_out_the_step_it_starts_from():
    """Medians of 1 and 9, of 3 and 3; with the start's zero 1 and 3, which would turn it."""
    mean = curves([[[0]], [[1]], [[9]]], [[[0]], [[3]], [[3]]], None, ("layer", "unit"))
    data = xr.Dataset({"activation_mean": mean, "activation_variance": xr.ones_like(mean)})
    claim = claims_of(14, data)[0]
    assert claim.measured == "standard 3, l1 norm 5; 1 of 1 seeds"


def test_changes_of_moments_are_medians():
    of_unit = ("layer", "unit")
    change = curves([[[1, 9]], [[2, 8]], [[9, 9]]], [[[5, 5]]] * 3, None, of_unit)
    expected = {"standard 5, noisy BatchNorm 8.5; 1 of 1 seeds"}
    assert {claim.measured for claim in moments(change)} == expected


@pytest.mark.parametrize("lacking", [["batch"], ["none"], ["batch", "none"]])
def test_what_was_not_measured_decides_nothing(lacking):
    """With an allowance, as of the shift, and without."""
    data = shifted([[1, 2]] * 3, [[1, 2]] * 3)
    data = xr.concat([data] * 3, "seed", data_vars="all").assign_coords(seed=range(3))
    data["training_loss"] = data["shift_cosine"].isel(layer=1)
    for name in data.data_vars:
        data[name].loc[{"norm": lacking}] = np.nan
    claims = [*claims_of(6, data), claims_of(2, data)[1]]
    assert [claim.holds for claim in claims] == [None] * 5
    assert all("not measured in 3 of them" in claim.measured for claim in claims)


def test_infinite_number_is_not_similar_to_another():
    data = shifted([[1, np.inf]], [[1, np.inf]], cosines=([[1, 0.5]], [[1, 0.5]]))
    data = xr.concat([data] * 3, "seed", data_vars="all").assign_coords(seed=range(3))
    assert [claim.holds for claim in claims_of(6, data)] == [True, False] * 2


def test_figure6_judges_each_network_by_its_own_numbers():
    convolutional, linear = shifted([[1, 2]], [[1, 9]]), shifted([[1, 7]], [[1, 3]])
    names = {name: f"linear_{name}" for name in linear.data_vars}
    dimensions = {"step": "linear_step", "layer": "linear_layer"}
    results = xr.merge([convolutional, linear.rename(names).rename_dims(dimensions)])
    results = results.assign_coords(linear_step=[0], linear_layer=["a", "b"])
    claims = EXPERIMENTS["santurkar2018/figure6"].claims(results)
    assert [claim.measured.partition(";")[0] for claim in claims] == [
        *("BatchNorm 0.02, standard 0.09", "standard 9, BatchNorm 2"),
        *("BatchNorm 0.07, standard 0.03", "standard 3, BatchNorm 7"),
    ]


@pytest.mark.parametrize(("figure", "expected"), [(4, "BatchNorm 3,"), (9, "BatchNorm 29,")])
def test_only_vgg_is_judged_by_its_second_half(figure, expected):
    data = landscape([50, 60, 70, 1, 3, 8], [5, 6, 7, 20, 30, 90])
    for claim in claims_of(figure, data):
        assert claim.measured.startswith(expected)
