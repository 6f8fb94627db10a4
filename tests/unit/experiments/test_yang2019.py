"""The experiments on gradient explosion at quick scale, and the parts they are made of."""

import math

import numpy as np
import pytest
import torch
import xarray as xr

from normscope.errors import InputError, UnknownNameError
from normscope.experiments import run
from normscope.experiments.yang2019.explosion import growth_per_layer
from normscope.experiments.yang2019.growth import (
    _averages,
    _relu_averages,
    batch_growth,
    residual_growth,
    spread,
)
from normscope.experiments.yang2019.stack import ARCHITECTURES, Stack, squared_gradients
from normscope.results import Store

TINY = {
    "batch_sizes": (4, 8),
    "widths": (10, 20),
    "depths": (4, 8),
    "depth": 8,
    "width": 20,
    "batch_size": 8,
    "seeds": 2,
}
FEW = {"depths": (2, 3), "learning_rates": (0.1,), "width": 8, "steps": 12, "seeds": 1}


@pytest.fixture(scope="module")
def explosion():
    return run("yang2019/explosion", **TINY)


def test_explosion_has_its_dimensions_and_finite_numbers(explosion):
    numbers = explosion.dataset
    assert dict(numbers.sizes) == {
        "architecture": 4,
        "activation": 3,
        "seed": 2,
        "layer": 8,
        "batch_size": 2,
        "width": 2,
        "depth": 2,
    }
    assert all(np.isfinite(values).all() for values in numbers.data_vars.values())
    assert np.allclose(numbers["squared_gradient"].isel(layer=-1), 1)
    assert np.allclose(numbers["expected_gradient"].isel(layer=-1), 1)


def test_explosion_shares_networks_between_sweeps_and_repeats(explosion):
    with Store(":memory:") as store:
        again = run("yang2019/explosion", store=store, **TINY)
        kept = store.counts("yang2019/explosion network")
    xr.testing.assert_identical(again.dataset, explosion.dataset)
    # architectures x activations, shallow depth, other batch, other width: 12 + 4 + 3 + 1 kinds
    assert sum(kept.values()) == 2 * (12 + 4 + 3 + 1)


def test_explosion_writes_and_draws(explosion, tmp_path):
    paths = explosion.write(tmp_path)
    assert paths["figure"].stat().st_size < 150_000
    assert "pi/(pi-1)" in paths["claims"].read_text(encoding="utf-8")


def test_narrow_nets_leave_the_theory_undecided(explosion):
    verdicts = {claim.text: claim.verdict for claim in explosion.claims}
    assert verdicts[
        "layer normalization does not explode with ReLU: the factor per layer is 1"
    ] == ("undecided")
    assert any("misprint" in text and said == "not reproduced" for text, said in verdicts.items())


def test_trainability_judges_depth_and_skips(tmp_path):
    result = run("yang2019/trainability", **FEW)
    assert result.dataset["loss"].dims == ("architecture", "depth", "learning_rate", "seed")
    assert np.isfinite(result.dataset["best_loss"]).all()
    assert len(result.claims) == 2
    assert result.write(tmp_path)["figure"].is_file()


def test_quick_trainability_reproduces_the_claims():
    result = run("yang2019/trainability", seeds=1)
    assert [claim.holds for claim in result.claims] == [True, True]


@pytest.mark.parametrize("size", [4, 7, 32])
def test_closed_averages_agree_with_the_sphere(size, monkeypatch):
    """The general path, by points on the sphere, with ReLU in the place of tanh."""
    from normscope.experiments.yang2019 import growth

    averages = _averages.__wrapped__  # nothing kept from one activation to the next
    monkeypatch.setitem(growth.ACTIVATIONS, "tanh", growth.ACTIVATIONS["relu"])
    assert averages("tanh", size) == pytest.approx(_relu_averages(size), rel=3e-3)
    monkeypatch.setitem(growth.ACTIVATIONS, "tanh", growth.ACTIVATIONS["linear"])
    assert averages("tanh", size) == pytest.approx((size - 2, size / (size - 1)), rel=1e-9)


def test_growth_needs_a_batch_of_four():
    with pytest.raises(InputError, match="above 3"):
        batch_growth("relu", 3)
    with pytest.raises(UnknownNameError, match="did you mean 'relu'"):
        batch_growth("rely", 8)


def test_residual_growth_falls_with_depth():
    factors = residual_growth("batch", "relu", 16, 50)
    assert (np.diff(factors) < 0).all()
    expected = 1 + batch_growth("relu", 16) * spread("relu", 16)
    assert factors[0] == pytest.approx(expected)
    layer = residual_growth("layer", "relu", 16, 50)
    assert layer.prod() == pytest.approx(1 + 50 / 2)  # telescopes: the variance itself


def test_growth_of_an_exponential_is_its_base():
    assert growth_per_layer(3.0 ** -np.arange(24.0)) == pytest.approx(3.0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_squared_gradients_are_those_of_autograd(architecture):
    """Against a perturbation of each block's output."""
    network = Stack(architecture, 5, 2, depth=3, width=6, activation="tanh").double()
    inputs = torch.randn(7, 5, dtype=torch.float64)
    found = squared_gradients(network, inputs, seed=1)
    direction = torch.randn(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for place in range(3):
        offset = torch.zeros(7, 6, dtype=torch.float64, requires_grad=True)
        x = network.stem(inputs)
        for index, block in enumerate(network.blocks):
            x = x + block(x) if network.residual else block(x)
            x = x + offset if index == place else x
        (gradient,) = torch.autograd.grad((network.head(network.last(x)) * direction).sum(), offset)
        assert found[place] == pytest.approx(float(gradient.square().sum()), rel=1e-9)


def test_stack_is_what_it_says():
    plain, skip = (Stack(name, 4, 3, depth=5, width=6) for name in ("batch", "batch, skip"))
    assert len(plain.blocks) == len(skip.blocks) == 5
    products = sum(isinstance(m, torch.nn.Linear) for m in plain.modules())
    assert products == 5 + 1  # the stem is the first
    x = torch.randn(8, 4)
    torch.testing.assert_close(plain(x), plain(3 * x), rtol=1e-3, atol=1e-3)  # scale-invariant
    variance = float(Stack("batch", 400, 3, depth=2, width=500).stem.weight.detach().var())
    assert variance == pytest.approx(2 / 400, rel=0.05)
    assert math.isfinite(variance)
