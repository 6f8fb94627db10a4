"""Initial weights against the distributions they are meant to have.

The seeds are fixed, so a test either always passes or always fails; the bounds are those that a
right sampler breaks in less than one of ten thousand seeds.
"""

import math

import pytest
import torch
from scipy import stats
from torch import nn

from normscope.errors import InputError
from normscope.models import build

RARE = 1e-4


# the first layer of each network, with fan in and fan out written out by hand
SHAPES = [
    ("fully_connected", {"input_shape": (50,), "width": 40}, 50, 40),
    ("conv_net", {"input_shape": (6, 9, 9), "channels": (20,), "stride": 2}, 6 * 9, 20 * 9),
    ("conv_net", {"input_shape": (12, 4, 4), "channels": (8,), "kernel": 1}, 12, 8),
    ("fully_connected", {"input_shape": (12,), "width": 8, "bias": False}, 12, 8),
]
INDICES = range(len(SHAPES))


def first_layer(index, seed=0, **options):
    name, shape, *_ = SHAPES[index]
    network = build(name, norm="none", seed=seed, **shape, **options)
    return next(each for each in network.modules() if isinstance(each, nn.Linear | nn.Conv2d))


def samples(initialization, index, seeds=40, **options):
    """All weights, and all biases, of one layer over many seeds."""
    drawn = [first_layer(index, s, initialization=initialization, **options) for s in range(seeds)]
    weights = torch.cat([layer.weight.detach().flatten() for layer in drawn]).double()
    biases = [layer.bias.detach() for layer in drawn if layer.bias is not None]
    return weights, torch.cat(biases).double() if biases else None


def assert_normal(values, variance):
    """The sum of squares within its chi-square interval, and the shape that of a normal law."""
    squares = (values.square().sum() / variance).item()
    low, high = stats.chi2.interval(1 - RARE, df=len(values))
    assert low < squares < high
    assert stats.kstest(values.numpy(), "norm", args=(0, math.sqrt(variance))).pvalue > RARE


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize(("sigma_w2", "sigma_b2"), [(2.0, 0.5), (0.7, 3.0)])
def test_meanfield_has_the_variances_of_the_theory(index, sigma_w2, sigma_b2):
    weights, biases = samples("meanfield", index, sigma_w2=sigma_w2, sigma_b2=sigma_b2)
    assert_normal(weights, sigma_w2 / SHAPES[index][2])
    if biases is not None:
        assert_normal(biases, sigma_b2)


def test_meanfield_defaults_are_those_of_the_paper():
    weights, biases = samples("meanfield", 0)
    assert_normal(weights, 2.0 / 50)
    assert_normal(biases, 0.5)


@pytest.mark.parametrize("index", INDICES)
def test_glorot_is_uniform_up_to_its_bound(index):
    *_, fan_in, fan_out = SHAPES[index]
    bound = math.sqrt(6 / (fan_in + fan_out))
    weights, biases = samples("glorot", index)
    assert weights.abs().max() <= bound
    assert stats.kstest(weights.numpy(), "uniform", args=(-bound, 2 * bound)).pvalue > RARE
    assert biases is None or not biases.any()


@pytest.mark.parametrize("initialization", ["glorot", "meanfield"])
def test_layers_of_one_network_are_independent(initialization):
    network = build("deep_linear", norm="none", depth=30, width=30, initialization=initialization)
    rows = torch.stack([layer.weight.detach().flatten() for layer in network.features[::2][1:]])
    correlations = torch.corrcoef(rows.double())[*torch.triu_indices(len(rows), len(rows), 1)]
    pairs = len(correlations)
    bound = stats.norm.isf(RARE / pairs / 2) / math.sqrt(rows.shape[1])
    assert correlations.abs().max() < bound


@pytest.mark.parametrize("name", ["fully_connected", "vgg"])
def test_build_hands_the_variances_on(name):
    network = build(
        name, norm="none", width=200 if name == "fully_connected" else 0.25,
        initialization="meanfield", sigma_w2=1.3, sigma_b2=0.0,
    )  # fmt: skip
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            assert_normal(layer.weight.detach().flatten().double(), 1.3 / layer.weight[0].numel())
            assert not layer.bias.any()


@pytest.mark.parametrize("options", [{"sigma_w2": -1.0}, {"sigma_b2": math.nan}])
def test_meanfield_refuses_what_is_no_variance(options):
    with pytest.raises(InputError, match=f"{next(iter(options))} is a variance"):
        build("deep_linear", initialization="meanfield", **options)


def test_layers_are_made_without_the_global_generator():
    before = torch.get_rng_state()
    made = [first_layer(index) for index in INDICES]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.device.type == "cpu" and p.requires_grad for m in made for p in m.parameters())
    assert [layer.bias is None for layer in made] == [False, False, False, True]


def test_convolution_has_the_shape_asked_for():
    shape = {"input_shape": (3, 9, 8), "channels": (5,), "stride": 2, "padding": 1}
    layer = build("conv_net", norm="none", **shape).features[0]
    assert layer.weight.shape == (5, 3, 3, 3)
    assert layer(torch.zeros(2, 3, 9, 8)).shape == (2, 5, 5, 4)
