"""Gradient norms, the gap of statistics and the top eigenvalue."""

import numpy as np
import pytest
import torch
from tests.references.probes import gradient_at, own_values
from torch import nn

import normscope as ns
from normscope.errors import InputError, NormscopeWarning
from normscope.probes import Curvature, Scope, StatisticsGap
from normscope.problem import cross_entropy


def batch(seed=0, samples=12):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 1, 8, 8, generator=generator, dtype=torch.double)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def net(**options):
    return ns.models.build("conv_net", input_shape=(1, 8, 8), channels=(4, 5), **options).double()


def test_gradient_norms_are_over_weight_and_bias():
    model = net()
    scope = Scope(model, "cross_entropy", probes=["gradient_norms"])
    scope.step(*batch())
    _, gradient = gradient_at(model, own_values(model), cross_entropy, *batch())
    for layer in ("features.0", "features.3", "head"):
        own = [g.square().sum() for name, g in gradient.items() if name.startswith(f"{layer}.")]
        expected = sum(own).sqrt().item()
        found = scope.results["gradient_norm"].sel(layer=layer).item()
        assert found == pytest.approx(expected, rel=1e-12)


def test_frozen_layer_has_no_gradient_norm():
    model = net()
    model.head.requires_grad_(False)
    scope = Scope(model, "cross_entropy", probes=["gradient_norms"])
    scope.step(*batch())
    norms = scope.results["gradient_norm"].isel(step=0)
    assert np.isnan(norms.sel(layer="head"))
    assert (norms[:2] > 0).all()


def test_batch_and_running_statistics_are_compared():
    norm = nn.BatchNorm1d(2, eps=0.5).double()
    norm.running_mean.copy_(torch.tensor([1.0, -1.0]))
    norm.running_var.copy_(torch.tensor([4.0, 0.5]))
    model = nn.Sequential(norm, nn.Linear(2, 10).double())
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 8.0]], dtype=torch.double)
    scope = Scope(model, "cross_entropy", probes=["statistics_gap"])
    scope.step(x, torch.tensor([0, 1, 2]))
    mean, variance = x.mean(0).numpy(), x.var(0).numpy()  # the 1/(m-1) variance
    means = np.sqrt(np.mean((mean - [1.0, -1.0]) ** 2 / (np.array([4.0, 0.5]) + 0.5)))
    spreads = np.sqrt(np.mean(np.log((variance + 0.5) / np.array([4.5, 1.0])) ** 2))
    results = scope.results.isel(step=0).sel(norm_layer="0")
    assert results["mean_gap"].sel(comparison="batch-running").item() == pytest.approx(means)
    assert results["spread_gap"].sel(comparison="batch-running").item() == pytest.approx(spreads)
    assert np.isnan(results["mean_gap"].sel(comparison="batch-population"))


def test_population_is_that_of_the_data_given():
    model = net()
    data = [batch(1), batch(2)]
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    scope = Scope(model, "cross_entropy", probes=[StatisticsGap(population_data=data)])
    scope.step(*batch())
    gaps = scope.results["mean_gap"].isel(step=0)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    ns.layers.population_statistics(model, data)  # now the running ones are the population's
    again = Scope(model, "cross_entropy", probes=["statistics_gap"])
    again.step(*batch())
    expected = again.results["mean_gap"].isel(step=0).sel(comparison="batch-running")
    np.testing.assert_allclose(gaps.sel(comparison="batch-population"), expected, rtol=1e-10)
    assert (gaps.sel(comparison="running-population") > 0).all()


def test_norm_without_running_statistics_has_no_gap():
    model = net(norm_options={"track_running_stats": False})
    scope = Scope(model, "cross_entropy", probes=["statistics_gap"])
    scope.step(*batch())
    assert np.isnan(scope.results["mean_gap"]).all()


def test_l_p_layer_compares_its_scale():
    model = net(norm="l1")
    scope = Scope(model, "cross_entropy", probes=["statistics_gap"])
    scope.step(*batch())
    gaps = scope.results["spread_gap"].sel(comparison="batch-running")
    assert np.isfinite(gaps).all()


def test_net_without_norm_layers_has_no_rows():
    scope = Scope(net(norm="none"), "cross_entropy", probes=["statistics_gap", "gradient_norms"])
    scope.step(*batch())
    assert scope.results.sizes["norm_layer"] == 0


def test_top_eigenvalue_is_the_curvature_packages():
    model = net()
    scope = Scope(model, "cross_entropy", probes=[Curvature(tolerance=1e-4)])
    scope.step(*batch())
    top = ns.curvature.top_eigenvalue(model, "cross_entropy", batch(), kind="hessian", tol=1e-6)
    assert scope.results["top_eigenvalue"].item() == pytest.approx(top.value, rel=1e-4)
    assert 0 < scope.results["top_eigenvalue_residual"].item() <= 1e-4


def test_curvature_starts_from_the_last_vector(monkeypatch):
    from normscope.probes import curvature

    seen = []
    search = curvature.top_eigenvalue

    def spied(*args, **options):
        found = search(*args, **options)
        seen.append((options["start"], found))
        return found

    monkeypatch.setattr(curvature, "top_eigenvalue", spied)
    scope = Scope(net(), "cross_entropy", probes=["curvature"], every=1)
    for _ in range(2):
        scope.step(*batch())
    assert seen[0][0] is None
    assert torch.equal(seen[1][0], seen[0][1].vectors)
    assert seen[1][1].matvecs < seen[0][1].matvecs


def test_probe_keeps_its_own_schedule():
    model = net()
    scope = Scope(model, "cross_entropy", probes=["gradient_norms", Curvature(every=4)], every=2)
    for _ in range(9):
        scope.step(*batch())
    assert scope.results["step"].values.tolist() == [0, 2, 4, 6, 8]
    known = np.isfinite(scope.results["top_eigenvalue"].values)
    assert known.tolist() == [True, False, True, False, True]
    assert np.isfinite(scope.results["gradient_norm"]).all()


def test_own_schedule_must_be_positive():
    with pytest.raises(
        InputError, match="every of curvature must be an integer of at least 1, got 0"
    ):
        Curvature(every=0)


def test_curvature_of_a_diverged_loss_is_not_a_number():
    model = net()
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    scope = Scope(model, "cross_entropy", probes=["curvature", "gradient_norms"])
    with pytest.warns(NormscopeWarning, match="the loss of step 0 is not finite") as caught:
        scope.step(*batch())
    assert len(caught) == 1
    assert np.isnan(scope.results["top_eigenvalue"])
    assert np.isnan(scope.results["loss"])
