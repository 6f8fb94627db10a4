"""The trainings behind the figures of santurkar2018: shared, resumed, and right by hand."""

import numpy as np
import pytest
import torch
import xarray as xr

from normscope.data import DATASETS, load
from normscope.experiments import EXPERIMENTS, run
from normscope.models import build
from normscope.probes import Scope
from normscope.problem import Problem
from normscope.results import State, Store
from normscope.training import sgd, train

RECORDS = "santurkar2018 training"  # what a store calls them
FIGURES = [f"santurkar2018/figure{number}" for number in (1, 2, 3, 4, *range(6, 15))]


SMALL = {"depth": 4, "samples": 50, "linear_steps": 12, "linear_every": 5}
SQUARES = torch.nn.MSELoss(reduction="sum")


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
    figure = {"name": "santurkar2018/figure9", "seeds": 2, **SMALL}
    whole = run(**figure)
    original, calls = Scope.step, []

    def stops_once(self, *batch):
        calls.append(batch)
        if len(calls) == 30:  # in the third training
            raise KeyboardInterrupt
        return original(self, *batch)

    monkeypatch.setattr(Scope, "step", stops_once)
    with Store(tmp_path / "runs.sqlite") as store, pytest.raises(KeyboardInterrupt):
        run(**figure, store=store)
    with Store(tmp_path / "runs.sqlite") as store:
        assert store.counts(RECORDS)[State.FINISHED] == 2
        resumed = run(**figure, store=store)
        attempts = sorted(record.attempts for record in store.select(RECORDS))
    assert attempts == [1, 1, 1, 2]
    assert len(calls) == 30 + 2 * 12
    xr.testing.assert_identical(resumed.dataset, whole.dataset)


def test_deep_linear_training_is_of_the_summed_loss_at_the_papers_rate():
    found = run("santurkar2018/figure9", seeds=1, **SMALL).dataset["training_loss"]
    data = DATASETS["gaussian"](samples=50, test_samples=1, seed=0)
    for norm in ("none", "batch"):
        model = build("deep_linear", norm=norm, seed=0, depth=4)
        losses = [s.loss for s in train(Problem(model, SQUARES, data.train), sgd(1e-6), 12)]
        means = [losses[0], np.mean(losses[1:6]), np.mean(losses[6:11])]  # since the last measured
        np.testing.assert_allclose(found.sel(norm=norm, seed=0), means, rtol=1e-12)


def test_vgg_training_is_of_the_mean_cross_entropy_in_batches_of_128():
    """Accuracies are of the first fifty samples of either split, before the step's update."""
    found = run("santurkar2018/figure2").dataset.sel(norm="none").isel(seed=0)
    data = load("digits")
    model = build("vgg", norm="none", seed=0, input_shape=(1, 8, 8), width=0.03)
    losses, accuracies = [], []

    def right(x, y, size=50):
        with torch.no_grad():
            return float((model(x[:size]).argmax(1) == y[:size]).double().mean())

    for step in train(Problem(model, "cross_entropy", data.train), sgd(0.1), 4, 128, 0):
        losses.append(step.loss)
        accuracies.append((right(*data.train), right(*data.test)))
    assert list(found["step"].values) == [0, 2]
    expected = [losses[0], np.mean(losses[1:3])]
    np.testing.assert_allclose(found["training_loss"], expected, rtol=1e-12)
    split = np.array(accuracies)[[0, 2]].T
    np.testing.assert_allclose(found["training_accuracy"], split[0], rtol=1e-12)
    np.testing.assert_allclose(found["test_accuracy"], split[1], rtol=1e-12)
    assert float(found["final_test_accuracy"]) == pytest.approx(right(*data.test, len(data.test.x)))


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
    problem = Problem(model, SQUARES, (x, y))
    losses = [step.loss for step in train(problem, sgd(rate), 1)]
    assert losses[0] == pytest.approx((residual**2).sum(), rel=1e-13)
    for parameter, by_hand in zip(model.parameters(), expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), by_hand, rtol=1e-12, atol=1e-14)


def test_mean_loss_trains_as_the_sum_with_the_rate_divided():
    x, y = torch.randn(2, 1000, 10, generator=torch.Generator().manual_seed(1)).double()
    ends = []
    for loss, rate in ((torch.nn.functional.mse_loss, 1e-2), (SQUARES, 1e-6)):
        model = build("deep_linear", seed=0, depth=5).double()
        for _ in train(Problem(model, loss, (x, y)), sgd(rate), 5):
            pass
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-12)


def test_probes_leave_the_training_as_it_is():
    """One experiment measures the landscape, the other moments only."""
    size = {"depth": 4, "samples": 100}
    rates = {"rates": (1e-9, 1e-8, 1e-6), "steps": 20}
    alone = run("santurkar2018/loss_scale", **size, **rates).dataset
    watched = run("santurkar2018/figure9", **size, linear_steps=20, linear_every=2).dataset
    expected = watched["training_loss"].drop_vars("learning_rate")
    found = alone["training_loss"].sel(learning_rate=1e-6, drop=True)
    xr.testing.assert_equal(found, expected.transpose(*found.dims))


def test_noise_of_a_training_comes_from_its_seed():
    found = []
    for before in (1, 2):
        torch.manual_seed(before)
        found.append(run("santurkar2018/figure2").dataset)
    assert np.isfinite(found[0]["training_loss"].sel(norm="noisy")).all()
    xr.testing.assert_identical(*found)


def test_divergence_is_a_result_with_holes():
    rates = (1e-9, 1e-8, 1e-6, 1.0)
    with Store(":memory:") as store:
        results = run("santurkar2018/loss_scale", store=store, rates=rates).dataset.sel(norm="none")
        records = store.select(RECORDS, state="diverged")
        taken = [record.parameters for record in records]
    assert {each["learning_rate"] for each in taken} == {1.0}
    assert results["training_loss"].sel(learning_rate=1e-6).notnull().all()
    diverged = results.sel(learning_rate=1.0)
    assert diverged["training_loss"].isnull().any()
    assert diverged["final_loss"].isnull().all()


def test_first_tenth_is_measured_ten_times_as_densely():
    size = {"depth": 2, "samples": 20, "linear_steps": 200, "linear_every": 20}
    steps = run("santurkar2018/figure8", **size).dataset["step"].values
    assert np.diff(steps[steps < 20]).tolist() == [2] * 9
    assert np.diff(steps[steps >= 20]).tolist() == [20] * 8


def test_networks_side_by_side_are_those_of_their_own_figures():
    with Store(":memory:") as store:
        both, vgg, linear = (
            run(f"santurkar2018/figure{number}", store=store).dataset for number in (10, 4, 9)
        )
    for prefix, alone in (("", vgg), ("linear_", linear)):
        own = both[f"{prefix}training_loss"]
        assert own.dims == ("norm", "seed", f"{prefix}step")
        np.testing.assert_array_equal(own, alone["training_loss"])
        np.testing.assert_array_equal(own[f"{prefix}step"], alone["step"])
        assert float(own[f"{prefix}learning_rate"]) == float(alone["learning_rate"])
    assert both["distance"].values.tolist() == [0.5, 1.5, 4.0]
    assert both["linear_distance"].values.tolist() == [0.01, 0.1, 1.0, 3.0, 6.0, 10.0, 20.0, 30.0]


def test_moments_are_of_the_layers_that_a_norm_layer_follows():
    with Store(":memory:") as store:
        layers = {
            number: run(f"santurkar2018/figure{number}", store=store).dataset["layer"].values
            for number in (3, 7)
        }
    features = [name for name in layers[3] if name.startswith("features")]
    assert 0 < len(features) < len(layers[3])
    assert layers[7].tolist() == features
