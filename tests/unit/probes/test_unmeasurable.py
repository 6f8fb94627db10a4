"""A probe that cannot measure says so once and lets the training go on."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.errors import NormscopeWarning
from normscope.probes import Curvature, EffectiveSmoothness, Scope


def net():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    model[1].running_var.fill_(3.0)
    return model


def batch(samples=9):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 4, generator=generator, dtype=torch.double)
    return x, torch.randint(0, 3, (samples,), generator=generator)


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1)


@pytest.mark.parametrize("probe", ["statistics_gap", "curvature"])
def test_single_sample_under_frozen_statistics_is_not_a_number(probe):
    model = net()
    model[1].eval()
    asked = Curvature(mode="train") if probe == "curvature" else probe
    scope = Scope(model, "cross_entropy", sgd(model), [asked, "gradient_norms"], every=1)
    with pytest.warns(NormscopeWarning, match=f"{probe} cannot be measured here"):
        scope.step(*batch(1))
    scope.step(*batch(1))  # says it once: a second warning would be an error
    values = scope.results[{"statistics_gap": "mean_gap", "curvature": "top_eigenvalue"}[probe]]
    assert values.sizes["step"] == 2
    assert np.isnan(values).all()
    assert np.isfinite(scope.results["gradient_norm"]).all()


def test_single_sample_has_a_curvature_with_running_statistics():
    model = net()
    model[1].eval()
    scope = Scope(model, "cross_entropy", sgd(model), ["curvature"])
    scope.step(*batch(1))
    assert np.isfinite(scope.results["top_eigenvalue"]).all()


def test_gradient_that_is_not_finite_has_no_curvature():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 4))

        def forward(self, x):
            return torch.sqrt(functional.linear(x, self.weight).abs().sum()) + 0 * x.mean(1)

    model = Root()
    scope = Scope(model, lambda output, _: output.mean(), sgd(model), "full", every=1)
    with pytest.warns(NormscopeWarning, match="the loss is finite, but its gradient is not"):
        scope.step(torch.randn(5, 4), torch.zeros(5))
    assert scope.results["loss"].item() == 0
    assert np.isnan(scope.results["top_eigenvalue"]).all()
    assert np.isnan(scope.results["local_smoothness"]).all()


@pytest.mark.parametrize("frozen", ["none", "norm", "all"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_local_smoothness_is_the_limit_of_the_ray(frozen, dropout):
    model = net()
    model.insert(3, nn.Dropout(dropout))
    if frozen != "none":
        (model[1] if frozen == "norm" else model).eval()
    probe = EffectiveSmoothness(local=True)
    mode = "eval" if frozen == "all" else "as_is"
    scope = Scope(model, "cross_entropy", sgd(model), [probe], distances=[1e-4], mode=mode)
    scope.step(*batch())
    results = scope.results
    local = results["local_smoothness"].item()
    assert results["effective_smoothness"].item() == pytest.approx(local, rel=1e-3)


@pytest.mark.parametrize("preset", ["full", "all"])
def test_batch_made_in_inference_mode_is_measured(preset):
    model = net()
    scope = Scope(model, "cross_entropy", sgd(model), preset, every=1)
    scope.step(*batch())
    with torch.inference_mode():
        made = batch()
        scope.step(*made)
    scope.step(*made)
    assert scope.results.sizes["step"] == 3
    assert np.isfinite(scope.results["top_eigenvalue"]).all()
    assert scope.results["gradient_norm"].values[0] == pytest.approx(
        scope.results["gradient_norm"].values[2]
    )


@pytest.mark.parametrize("probes", ["economy", "standard", "gradient_norms", "curvature"])
def test_loss_that_is_not_finite_is_warned_of_once_where_the_user_calls(probes):
    model = net()
    scope = Scope(model, "cross_entropy", sgd(model), probes, every=1)
    x, y = batch(6)
    scope.step(x, y)
    with pytest.warns(NormscopeWarning, match="the loss of step 1 is not finite") as caught:
        scope.step(x * float("nan"), y)
    scope.step(x * float("nan"), y)  # says it once: a second warning would be an error
    assert [warning.filename for warning in caught] == [__file__]
    assert np.isnan(scope.results["loss"]).values.tolist() == [False, True, True]
