"""Results of a scope as named numbers and histograms."""

import numpy as np
import pytest
import xarray as xr

from normscope.integrations.logger import Logger
from normscope.integrations.tags import histograms, scalars


def results(**variables):
    sizes = {"step": 2, "layer": 2, "unit": 3, "distance": 2, "bin": 4}
    labels = {
        "step": [0, 10],
        "layer": ["net.0", ""],
        "unit": np.arange(3),
        "distance": [0.5, 2.0],
        "bin": np.arange(4),
    }
    used = {name for dims in variables.values() for name in (*dims, "step")}
    generator = np.random.default_rng(0)
    arrays = {
        name: (("step", *dims), generator.normal(size=[2, *(sizes[each] for each in dims)]))
        for name, dims in variables.items()
    }
    return xr.Dataset(arrays, {name: label for name, label in labels.items() if name in used})


def as_dict(found):
    return {(each.tag, each.step): each.value for each in found}


def test_scalars_are_named_by_variable_and_layer():
    given = results(loss=(), gradient_norm=("layer",))
    found = as_dict(scalars(given))
    assert found == {
        ("scope/loss", 0): given["loss"].values[0],
        ("scope/loss", 10): given["loss"].values[1],
        ("scope_gradient_norm/net.0", 0): given["gradient_norm"].values[0, 0],
        ("scope_gradient_norm/model", 0): given["gradient_norm"].values[0, 1],
        ("scope_gradient_norm/net.0", 10): given["gradient_norm"].values[1, 0],
        ("scope_gradient_norm/model", 10): given["gradient_norm"].values[1, 1],
    }


def test_steps_come_in_order():
    steps = [each.step for each in scalars(results(loss=(), gradient_norm=("layer",)))]
    assert steps == [0, 0, 0, 10, 10, 10]


def test_missing_values_have_no_scalar_but_a_diverged_loss_has():
    given = results(loss=(), gradient_norm=("layer",))
    given["loss"][1] = np.nan
    given["gradient_norm"][:, 1] = np.nan
    given["gradient_norm"][1, 0] = np.inf
    found = as_dict(scalars(given))
    assert np.isnan(found["scope/loss", 10])
    assert found["scope_gradient_norm/net.0", 10] == np.inf
    assert not [tag for tag, _ in found if tag.endswith("/model")]


def test_units_are_averaged_and_the_ray_left_out():
    given = results(activation_mean=("layer", "unit"), ray_loss=("distance",))
    given["activation_mean"][0, 0, 2] = np.nan  # the layer has two units
    given["activation_mean"][:, 1] = np.nan
    found = as_dict(scalars(given))
    assert set(found) == {("scope_activation_mean/net.0", step) for step in (0, 10)}
    first = given["activation_mean"].values[0, 0, :2].mean()
    assert found["scope_activation_mean/net.0", 0] == pytest.approx(first, rel=1e-15)


def test_details_name_every_unit_and_distance():
    given = results(activation_mean=("layer", "unit"), ray_loss=("distance",))
    found = as_dict(scalars(given, "probe", details=True))
    assert len(found) == 2 * (6 + 2)
    assert found["probe_ray_loss/distance_0.5", 10] == given["ray_loss"].values[1, 0]
    unit = found["probe_activation_mean/model/unit_2", 10]
    assert unit == given["activation_mean"].values[1, 1, 2]


def test_dimension_before_the_step_does_not_mix_values():
    given = results(gradient_norm=("layer",))
    assert as_dict(scalars(given.transpose("layer", "step"))) == as_dict(scalars(given))


def test_nothing_measured_gives_nothing():
    assert not list(scalars(xr.Dataset()))
    assert not list(histograms(xr.Dataset()))


class Kept:
    def __init__(self):
        self.calls = []

    def add_scalar(self, tag, value, step):
        self.calls.append((tag, value, step))


class KeptHistograms(Kept):
    def add_histogram_raw(self, tag, **parts):
        self.calls.append((tag, parts))


def counted():
    given = results(histogram=("layer", "unit", "bin"))
    given["histogram"] = np.abs(given["histogram"] * 10).round()
    ends = (("step", "layer", "unit"), np.zeros((2, 2, 3)))
    given = given.assign(histogram_low=ends, histogram_high=ends)
    given["histogram_high"] = given["histogram_high"] + 8
    given["histogram"][0, 1, 2] = np.nan
    return given


def test_histograms_know_their_edges_and_moments():
    given = counted()
    assert not list(scalars(given))
    found = {(each.tag, each.step): each for each in histograms(given)}
    assert len(found) == 11
    logger = KeptHistograms()
    found["scope_activation/model/unit_1", 10].send(logger, 110)
    ((tag, parts),) = logger.calls
    counts = given["histogram"].values[1, 1, 1]
    assert tag == "scope_activation/model/unit_1"
    assert parts["bucket_limits"] == [2.0, 4.0, 6.0, 8.0]
    assert parts["bucket_counts"] == counts.tolist()
    assert (parts["min"], parts["max"], parts["num"]) == (0.0, 8.0, counts.sum())
    middles = np.repeat([1.0, 3.0, 5.0, 7.0], counts.astype(int))
    assert parts["sum"] == middles.sum()
    assert parts["sum_squares"] == (middles**2).sum()
    assert parts["global_step"] == 110


def test_histograms_pass_a_logger_without_them():
    logger = Kept()
    assert isinstance(logger, Logger)
    for each in histograms(counted()):
        each.send(logger, 0)
    assert not logger.calls
