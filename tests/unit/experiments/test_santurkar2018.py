"""The trainings behind the figures of santurkar2018: shared, resumed, and right by hand."""

import numpy as np
import pytest
import torch
import xarray as xr

from normscope.experiments import EXPERIMENTS, run
from normscope.experiments.santurkar2018 import trainings
from normscope.experiments.santurkar2018.measurements import (
    LINEAR_DISTANCES,
    VGG_DISTANCES,
    beside,
    linear_part,
    measured_steps,
)
from normscope.experiments.santurkar2018.trainings import (
    MOMENTS,
    RECORDS,
    Training,
    run_trainings,
    summed_squares,
)
from normscope.models import build
from normscope.problem import Problem
from normscope.results import State, Store
from normscope.training import sgd, train

FIGURES = [f"santurkar2018/figure{number}" for number in (1, 2, 3, 4, *range(6, 15))]


def linear(norm="none", rate=1e-6, steps=12, **changes):
    settings = {"measured": (0, 5, 10), "options": {"depth": 4, "samples": 50}} | changes
    return Training("deep_linear", norm, rate, steps, **settings)


def quiet(label):
    return None


def test_every_figure_but_the_theorems_setting_is_there():
    assert set(FIGURES) <= set(EXPERIMENTS)
    assert "santurkar2018/figure5" not in EXPERIMENTS


@pytest.mark.parametrize("name", FIGURES)
def test_paper_scale_is_the_papers(name):
    settings = EXPERIMENTS[name].settings("paper", {})
    printed = {
        "data": "cifar10",
        "width": 1.0,
        "steps": 15_000,
        "depth": 25,
        "samples": 1000,
        "linear_steps": 10_000,
    }
    shared = settings.keys() & printed.keys()
    assert shared
    assert {key: settings[key] for key in shared} == {key: printed[key] for key in shared}
    assert settings["seeds"] >= 3
    assert EXPERIMENTS[name].settings("small", {})["seeds"] >= 3


def test_distances_span_the_papers_ranges():
    assert (VGG_DISTANCES[0], VGG_DISTANCES[-1]) == (0.5, 4.0)
    assert (LINEAR_DISTANCES[0], LINEAR_DISTANCES[-1]) == (0.01, 30.0)


def test_figures_share_their_trainings():
    with Store(":memory:") as store:
        run("santurkar2018/figure9", store=store)
        assert store.counts(RECORDS)[State.FINISHED] == 2
        run("santurkar2018/figure12", store=store)  # three more normalizations
        assert store.counts(RECORDS)[State.FINISHED] == 5
        run("santurkar2018/figure8", store=store)
        assert store.counts(RECORDS)[State.FINISHED] == 5
        run("santurkar2018/figure4", store=store)
        assert store.counts(RECORDS)[State.FINISHED] == 7
        run("santurkar2018/figure10", store=store)
        assert store.counts(RECORDS)[State.FINISHED] == 7
        assert all(record.attempts == 1 for record in store.select(RECORDS))


def test_interrupted_run_goes_on_with_the_training_under_way(tmp_path, monkeypatch):
    asked = [linear("none"), linear("batch")]
    whole = run_trainings(asked, [0, 1], Store(":memory:"), quiet)
    original, calls = trainings.Scope.step, []

    def stops_once(self, *batch):
        calls.append(batch)
        if len(calls) == 30:  # in the third training
            raise KeyboardInterrupt
        return original(self, *batch)

    monkeypatch.setattr(trainings.Scope, "step", stops_once)
    with Store(tmp_path / "runs.sqlite") as store, pytest.raises(KeyboardInterrupt):
        run_trainings(asked, [0, 1], store, quiet)
    with Store(tmp_path / "runs.sqlite") as store:
        assert store.counts(RECORDS)[State.FINISHED] == 2
        resumed = run_trainings(asked, [0, 1], store, quiet)
        attempts = sorted(record.attempts for record in store.select(RECORDS))
    assert attempts == [1, 1, 1, 2]
    assert len(calls) == 30 + 2 * 12
    xr.testing.assert_identical(resumed, whole)


def test_deep_linear_step_is_the_one_worked_out_by_hand():
    """Float64: with W = W_k ... W_1 and the residual R, dL/dW_i = 2 (W_k..W_{i+1})' R' H_{i-1}."""
    rate = 1e-4
    model = build("deep_linear", norm="none", seed=3, depth=4).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 10, generator=generator, dtype=torch.float64)
    y = torch.randn(30, 10, generator=generator, dtype=torch.float64)
    weights = [parameter.detach().numpy().copy() for parameter in model.parameters()]
    hidden = [x.numpy()]
    for weight in weights:
        hidden.append(hidden[-1] @ weight.T)
    residual = hidden[-1] - y.numpy()
    expected = []
    for place, weight in enumerate(weights):
        behind = np.eye(10)
        for later in weights[place + 1 :]:
            behind = later @ behind
        expected.append(weight - rate * 2 * behind.T @ residual.T @ hidden[place])
    problem = Problem(model, summed_squares, (x, y))
    losses = [step.loss for step in train(problem, sgd(rate), 1)]
    assert losses[0] == pytest.approx((residual**2).sum(), rel=1e-13)
    for parameter, by_hand in zip(model.parameters(), expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), by_hand, rtol=1e-12, atol=1e-14)


def test_mean_loss_trains_as_the_sum_with_the_rate_divided():
    x, y = torch.randn(2, 1000, 10, generator=torch.Generator().manual_seed(1)).double()
    ends = []
    for loss, rate in ((torch.nn.functional.mse_loss, 1e-2), (summed_squares, 1e-6)):
        model = build("deep_linear", seed=0, depth=5).double()
        for _ in train(Problem(model, loss, (x, y)), sgd(rate), 5):
            pass
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-12)


def test_probes_leave_the_training_as_it_is():
    with Store(":memory:") as store:
        watched = run_trainings([linear("batch")], [0], store, quiet)
        alone = run_trainings([linear("batch", probes=MOMENTS, measured=(0,))], [0], store, quiet)
    assert watched["final_loss"].item() == alone["final_loss"].item()


def test_noise_of_a_training_comes_from_its_seed():
    ends = []
    for before in (1, 2):
        torch.manual_seed(before)
        noisy = linear("noisy", probes=MOMENTS, measured=(0,), steps=3)
        ends.append(run_trainings([noisy], [0], Store(":memory:"), quiet)["final_loss"].item())
    assert np.isfinite(ends[0])
    assert ends[0] == ends[1]


def test_divergence_is_a_result_with_holes():
    with Store(":memory:") as store:
        results = run_trainings([linear(rate=1.0), linear(rate=1e-6)], [0], store, quiet)
        counts = store.counts(RECORDS)
    assert (counts[State.DIVERGED], counts[State.FINISHED]) == (1, 1)
    assert results["training_loss"].sel(learning_rate=1e-6).notnull().all()
    diverged = results.sel(learning_rate=1.0)
    assert diverged["training_loss"].isnull().any()
    assert diverged["final_loss"].isnull().all()
    assert diverged["updates_taken"].item() < 12


def test_first_tenth_is_measured_ten_times_as_densely():
    steps = np.array(measured_steps(10_000, 500))
    assert np.diff(steps[steps < 1000]).tolist() == [50] * 19
    assert np.diff(steps[steps >= 1000]).tolist() == [500] * 17


def test_networks_side_by_side_come_apart_again():
    coordinates = {"norm": ["none", "batch"], "step": [0, 1], "layer": ["a", "b"], "seed": [0]}
    values = np.arange(8.0).reshape(2, 1, 2, 2)
    one = xr.Dataset({"shift": (("norm", "seed", "step", "layer"), values)}, coordinates)
    other = one.isel(step=[0]).assign_coords(layer=["c", "d"]) + 100
    both = beside(one, other)
    xr.testing.assert_identical(linear_part(both), other)
    xr.testing.assert_identical(both[["shift"]], one)
