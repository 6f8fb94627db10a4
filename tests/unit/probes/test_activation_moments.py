import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import InputError
from normscope.probes import ActivationMoments, Scope
from normscope.problem import cross_entropy

NAMES = ("activation_mean", "activation_variance")


def batch(seed=0, samples=12):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 1, 8, 8, generator=generator)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def by_hooks(model, norm_after, x, channels):
    """Mean and variance of given channels after a module, the plain way."""
    seen = []
    handle = norm_after.register_forward_hook(lambda *call: seen.append(call[2].detach().clone()))
    flags = [module.training for module in model.modules()]
    buffers = [b.clone() for b in model.buffers()]
    model(x)
    handle.remove()
    for old, new in zip(buffers, model.buffers(), strict=True):
        new.copy_(old)
    assert flags == [module.training for module in model.modules()]
    values = seen[0].double().transpose(0, 1).flatten(1)[channels]
    return values.mean(1).numpy(), values.var(1, correction=0).numpy()


def test_moments_are_those_after_the_norm_layer():
    model = ns.models.build("conv_net", input_shape=(1, 8, 8), channels=(4, 5), gamma=2.0)
    scope = Scope(model, "cross_entropy", probes=[ActivationMoments(units=3)])
    x, y = batch()
    scope.step(x, y)
    results = scope.results.isel(step=0)
    after = {"features.0": model.features[1], "features.3": model.features[4], "head": model.head}
    assert results["layer"].values.tolist() == list(after)
    for layer, module in after.items():
        here = results.sel(layer=layer)
        mean, variance = by_hooks(model, module, x, here["channel"].values)
        np.testing.assert_allclose(here["activation_mean"], mean, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(here["activation_variance"], variance, rtol=1e-10)
    assert results.sel(layer="features.3")["activation_variance"].values == pytest.approx(
        [4.0] * 3, rel=1e-2
    )


@pytest.mark.parametrize("every", [1, 3])
def test_change_is_between_this_step_and_the_next(every):
    def trained(probes, every, steps=7):
        model = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=9, norm="none")
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        scope = Scope(model, "cross_entropy", optimizer, probes, every)
        for step in range(steps):
            x, y = batch(step)
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            scope.step(x, y)
            optimizer.step()
        scope.close()
        return scope.results

    all_steps = trained([ActivationMoments()], 1, steps=8)
    results = trained([ActivationMoments()], every)
    measured = results["step"].values
    assert measured.tolist() == list(range(0, 7, every))
    for name in NAMES:
        values = all_steps[name].values
        np.testing.assert_array_equal(results[name], values[measured])
        expected = np.abs(values[measured + 1] - values[measured])
        expected[measured == 6] = np.nan  # the training ended before the step after
        np.testing.assert_array_equal(results[f"{name}_change"], expected)


def test_units_are_drawn_by_the_seed_once():
    model = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=50)

    def channels(seed, steps=1):
        scope = Scope(model, "cross_entropy", probes=["activation_moments"], every=1, seed=seed)
        for _ in range(steps):
            scope.step(*batch())
        return scope.results["channel"].values

    assert np.array_equal(channels(0), channels(0, steps=3))
    assert not np.array_equal(channels(0), channels(1))
    hidden = channels(0)[0]
    assert len(set(hidden)) == 8
    assert hidden.max() < 50


def test_layer_with_fewer_units_has_all_of_them():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Linear(3, 10))
    scope = Scope(model, "cross_entropy", probes=[ActivationMoments(units=5)])
    scope.step(*batch())
    results = scope.results.isel(step=0, layer=0)
    assert results["channel"].values.tolist() == [0, 1, 2, -1, -1]
    assert np.isfinite(results["activation_mean"].values).tolist() == [True] * 3 + [False] * 2


def test_histograms_count_every_value():
    model = ns.models.build("conv_net", input_shape=(1, 8, 8), channels=(4,))
    scope = Scope(model, "cross_entropy", probes=[ActivationMoments(units=2, bins=7)])
    x, y = batch()
    scope.step(x, y)
    results = scope.results.isel(step=0).sel(layer="features.0")
    values = model.features[:2](x).detach().double()[:, results["channel"].values]
    for unit in range(2):
        numbers = values[:, unit].flatten().numpy()
        counts, edges = np.histogram(numbers, 7)
        np.testing.assert_array_equal(results["histogram"][unit], counts)
        assert results["histogram_low"][unit].item() == edges[0]
        assert results["histogram_high"][unit].item() == edges[-1]
        assert results["histogram"][unit].sum() == numbers.size


def test_activation_overwritten_in_place_is_seen_before():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(inplace=True), nn.Linear(4, 10))
    scope = Scope(model, "cross_entropy", probes=[ActivationMoments(units=4)])
    x, y = batch()
    scope.step(x, y)
    expected = model[1](x.flatten(1)).detach().double().mean(0)
    assert expected.min() < 0
    np.testing.assert_allclose(scope.results["activation_mean"][0, 0], expected, rtol=1e-12)


def test_checkpointed_part_is_seen_once():
    from torch.utils.checkpoint import checkpoint

    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 5)
            self.last = nn.Linear(5, 10)

        def forward(self, x):
            return self.last(checkpoint(self.first, x.flatten(1), use_reentrant=False))

    model = Kept()
    scope = Scope(model, "cross_entropy", probes=["activation_moments", "gradient_norms"])
    scope.step(*batch())
    assert scope.results["layer"].values.tolist() == ["first", "last"]
    assert np.isfinite(scope.results["gradient_norm"]).all()


@pytest.mark.parametrize("options", [{"units": 0}, {"bins": -1}])
def test_counts_must_be_sensible(options):
    with pytest.raises(InputError, match="units must be positive, bins not negative"):
        ActivationMoments(**options)


def test_batch_norm_over_tokens_counts_as_the_norm_behind_its_layer():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.ReLU())
    model = nn.Sequential(ns.layers.convert(body, to="batch"), nn.Flatten(), nn.Linear(15, 2))
    scope = Scope(model, "cross_entropy", probes=[ActivationMoments(units=3)])
    scope.step(torch.randn(20, 5, 4), torch.arange(20) % 2)
    moments = scope.results.isel(step=0).sel(layer="0.0")
    assert np.abs(moments["activation_mean"]).max() < 1e-6
    assert np.allclose(moments["activation_variance"], 1.0, atol=1e-3)
