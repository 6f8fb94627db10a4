"""Tags of a scope's results, and logging while the training runs."""

import numpy as np
import pytest
import torch
import xarray as xr
from tests.references.loggers import Kept, sent

import normscope as ns
from normscope.errors import ArgumentTypeError, InputError
from normscope.integrations import LoggedScope, Logger, RowLogger, log_results
from normscope.problem import cross_entropy


def trained(scope_of, steps=6):
    torch.manual_seed(0)
    x, y = ns.data.load("digits").train
    model = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=8, depth=3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scope = scope_of(model, optimizer)
    with scope:
        for step in range(steps):
            batch = slice(16 * step, 16 * step + 16)
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            scope.step(x[batch], y[batch])
            optimizer.step()
    return scope


def logged(logger, probes="standard", **options):
    return lambda model, optimizer: LoggedScope(
        ns.Scope(model, "cross_entropy", optimizer, probes, every=2), logger, **options
    )


def expected(results, first_step=0, **options):
    values = sent(results, **options).values
    return {(tag, step + first_step): value for (tag, step), value in values.items()}


@pytest.mark.parametrize("steps", [5, 6])  # the last step is measured, and is not
@pytest.mark.parametrize("details", [False, True])
def test_every_number_is_passed_on_once(steps, details):
    logger = Kept()
    scope = trained(logged(logger, details=details), steps)
    assert logger.values == expected(scope.results, details=details)
    changes = [step for tag, step in logger.values if "mean_change/" in tag]
    assert set(changes) == ({0, 2, 4} if steps == 6 else {0, 2})


def test_numbers_come_when_they_are_known():
    logger = Kept()
    told = []

    class Watched(LoggedScope):
        def step(self, x, y=None):
            measured = super().step(x, y)
            told.append((measured, len(logger.values), logger.flushes))
            return measured

    trained(lambda model, optimizer: Watched(logged(logger)(model, optimizer).scope, logger), 4)
    (first, at_once, _), (second, after, flushed), (_, third, _), _ = told
    assert (first, second) == (True, False)
    assert 0 < at_once < after < third  # the change of the moments is known one step later
    assert flushed == 2


def test_unmeasured_steps_cost_the_logger_nothing():
    logger = Kept()
    probes = "gradient_norms"
    trained(lambda m, o: LoggedScope(ns.Scope(m, "cross_entropy", o, probes, 50), logger), 20)
    assert logger.flushes == 3  # the measured step, the one after it, the end


def test_first_step_moves_all_steps():
    logger = Kept()
    moments = ns.probes.PROBES["activation_moments"](bins=4)
    scope = trained(logged(logger, [moments], first_step=100))
    assert logger.values == expected(scope.results, 100)
    for logged_under in (logger.values, logger.histograms):
        assert {step for _, step in logged_under} == {100, 102, 104}


def test_logged_training_ends_in_the_same_bits():
    plain = trained(lambda m, o: ns.Scope(m, "cross_entropy", o, "standard", every=2))
    with_logger = trained(logged(Kept()))
    assert plain.results.identical(with_logger.results)


def test_rows_before_an_error_are_passed_on():
    logger = Kept()
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    model = torch.nn.Linear(3, 3)
    scope = ns.Scope(model, "cross_entropy", learning_rate=0.1, probes="activation_moments")
    running = LoggedScope(scope, logger)
    running.step(x, y)
    running.__exit__(ZeroDivisionError, ZeroDivisionError("in the training"), None)
    assert logger.values == expected(scope.results)
    assert not np.isnan(list(logger.values.values())).any()


def test_results_are_logged_afterwards():
    scope = trained(lambda m, o: ns.Scope(m, "cross_entropy", o, "economy", every=2))
    logger = Kept()
    log_results(scope.results, logger, prefix="later")
    assert logger.values == expected(scope.results, prefix="later")
    assert logger.flushes == 1


def test_results_without_steps_are_refused():
    given = trained(lambda m, o: ns.Scope(m, "cross_entropy", o, "economy"))
    with pytest.raises(InputError, match="the dimension step"):
        log_results(given.results.isel(step=0), Kept())


def test_other_objects_are_no_loggers():
    scope = ns.Scope(torch.nn.Linear(1, 1), "squared_error", probes="gradient_norms")
    with pytest.raises(ArgumentTypeError, match=r"add_scalar.*got dict"):
        LoggedScope(scope, {})
    with pytest.raises(ArgumentTypeError, match=r"add_scalar.*got list"):
        log_results(scope.results, [])


def test_row_logger_gives_each_step_once():
    rows = []

    class Rows(RowLogger):
        def log_row(self, step, values):
            rows.append((step, values))

    scope = trained(logged(Rows(), "economy"))
    assert [step for step, _ in rows] == [0, 2, 4]
    found = {(tag, step): value for step, values in rows for tag, value in values.items()}
    assert found == expected(scope.results)


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


def test_scalars_are_named_by_variable_and_layer():
    given = results(loss=(), gradient_norm=("layer",))
    found = sent(given).values
    assert found == {
        ("scope/loss", 0): given["loss"].values[0],
        ("scope/loss", 10): given["loss"].values[1],
        ("scope_gradient_norm/net.0", 0): given["gradient_norm"].values[0, 0],
        ("scope_gradient_norm/model", 0): given["gradient_norm"].values[0, 1],
        ("scope_gradient_norm/net.0", 10): given["gradient_norm"].values[1, 0],
        ("scope_gradient_norm/model", 10): given["gradient_norm"].values[1, 1],
    }


def test_steps_come_in_order():
    steps = [step for _, step in sent(results(loss=(), gradient_norm=("layer",))).values]
    assert steps == [0, 0, 0, 10, 10, 10]


def test_missing_values_have_no_scalar_but_a_diverged_loss_has():
    given = results(loss=(), gradient_norm=("layer",))
    given["loss"][1] = np.nan
    given["gradient_norm"][:, 1] = np.nan
    given["gradient_norm"][1, 0] = np.inf
    found = sent(given).values
    assert np.isnan(found["scope/loss", 10])
    assert found["scope_gradient_norm/net.0", 10] == np.inf
    assert not [tag for tag, _ in found if tag.endswith("/model")]


def test_units_are_averaged_and_the_ray_left_out():
    given = results(activation_mean=("layer", "unit"), ray_loss=("distance",))
    given["activation_mean"][0, 0, 2] = np.nan  # the layer has two units
    given["activation_mean"][:, 1] = np.nan
    found = sent(given).values
    assert set(found) == {("scope_activation_mean/net.0", step) for step in (0, 10)}
    first = given["activation_mean"].values[0, 0, :2].mean()
    assert found["scope_activation_mean/net.0", 0] == pytest.approx(first, rel=1e-15)


def test_details_name_every_unit_and_distance():
    given = results(activation_mean=("layer", "unit"), ray_loss=("distance",))
    found = sent(given, prefix="probe", details=True).values
    assert len(found) == 2 * (6 + 2)
    assert found["probe_ray_loss/distance_0.5", 10] == given["ray_loss"].values[1, 0]
    unit = found["probe_activation_mean/model/unit_2", 10]
    assert unit == given["activation_mean"].values[1, 1, 2]


def test_dimension_before_the_step_does_not_mix_values():
    given = results(gradient_norm=("layer",))
    assert sent(given.transpose("layer", "step")).values == sent(given).values


def test_nothing_measured_gives_nothing():
    scope = ns.Scope(torch.nn.Linear(1, 1), "squared_error", probes="activation_moments")
    logger = Kept()
    LoggedScope(scope, logger).close()
    assert (logger.values, logger.histograms) == ({}, {})


class Calls:
    def __init__(self):
        self.calls = []

    def add_scalar(self, tag, value, step):
        self.calls.append((tag, value, step))


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
    logger = sent(given)
    assert not logger.values
    assert len(logger.histograms) == 11
    parts = logger.histograms["scope_activation/model/unit_1", 10]
    counts = given["histogram"].values[1, 1, 1]
    assert parts["bucket_limits"] == [2.0, 4.0, 6.0, 8.0]
    assert parts["bucket_counts"] == counts.tolist()
    assert (parts["min"], parts["max"], parts["num"]) == (0.0, 8.0, counts.sum())
    middles = np.repeat([1.0, 3.0, 5.0, 7.0], counts.astype(int))
    assert parts["sum"] == middles.sum()
    assert parts["sum_squares"] == (middles**2).sum()


def test_histograms_pass_a_logger_without_them():
    logger = Calls()
    assert isinstance(logger, Logger)
    log_results(counted(), logger)
    assert not logger.calls
