"""RMS normalization and dynamic tanh against their definitions."""

import pytest
import torch
from torch import nn

from normscope.layers import (
    DynamicTanh,
    SampleRMSNorm,
    ShiftedRMSNorm,
    convert,
    is_norm,
    kind_of,
    norm_layers,
    normalization,
)


def double(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomized(layer):
    with torch.no_grad():
        for seed, each in enumerate(layer.parameters()):
            each.copy_(double(*each.shape, seed=seed))
    return layer


def by_definition(x, axes, eps, weight, bias, channel):
    """Return y = gamma x / sqrt(mean x^2 + eps) + beta."""
    shape = [1] * x.dim()
    shape[channel] = -1
    count = torch.Size([x.shape[axis] for axis in axes]).numel()
    root = (x.pow(2).sum(axes, keepdim=True) / count + eps) ** 0.5
    return x / root * weight.reshape(shape) + bias.reshape(shape)


@pytest.mark.parametrize("shape", [(4, 6), (4, 3, 6), (2, 3, 2, 6)], ids=str)
def test_shifted_layer_normalizes_the_last_dimension(shape):
    layer = randomized(ShiftedRMSNorm(6, eps=0.1, dtype=torch.float64))
    x = double(*shape, seed=5).requires_grad_()
    expected = by_definition(x, (-1,), 0.1, layer.weight, layer.bias, -1)
    torch.testing.assert_close(layer(x), expected)
    leaves = [x, *layer.parameters()]
    got = torch.autograd.grad(layer(x).pow(3).sum(), leaves)
    torch.testing.assert_close(got, torch.autograd.grad(expected.pow(3).sum(), leaves))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("shift", [False, True])
def test_sample_layer_normalizes_channels_and_positions_together(dimensions, shift):
    layer = randomized(SampleRMSNorm(4, eps=0.1, shift=shift, dtype=torch.float64))
    x = double(3, 4, *[2] * dimensions, seed=5).requires_grad_()
    axes = tuple(range(1, x.dim()))
    bias = layer.bias if shift else torch.zeros(4, dtype=torch.float64)
    expected = by_definition(x, axes, 0.1, layer.weight, bias, 1)
    torch.testing.assert_close(layer(x), expected)
    leaves = [x, *layer.parameters()]
    got = torch.autograd.grad(layer(x).pow(3).sum(), leaves)
    torch.testing.assert_close(got, torch.autograd.grad(expected.pow(3).sum(), leaves))


@pytest.mark.parametrize(
    "layer", [ShiftedRMSNorm(3), SampleRMSNorm(2, shift=True)], ids=lambda each: type(each).__name__
)
def test_derivatives(layer):
    layer = randomized(layer.double())
    x = double(2, 2, 3).requires_grad_()
    inputs = (x, *layer.parameters())

    def run(x, *values):
        named = dict(zip(dict(layer.named_parameters()), values, strict=True))
        return torch.func.functional_call(layer, named, (x,))

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_sample_layer_is_group_norm_of_centred_samples():
    x = double(3, 4, 5)
    centred = x - x.mean((1, 2), keepdim=True)
    layer = SampleRMSNorm(4, dtype=torch.float64)
    torch.testing.assert_close(layer(centred), nn.GroupNorm(1, 4).double()(x))


@pytest.mark.parametrize("dimensions", [0, 2])
def test_scale_of_a_sample_does_not_matter(dimensions):
    layer = normalization("rms", 4, dimensions, eps=0.0, dtype=torch.float64)
    x = double(3, 4, *[2] * dimensions)
    torch.testing.assert_close(layer(11 * x), layer(x))
    assert not torch.allclose(layer(x + 1), layer(x))  # it does not centre


def test_half_precision_keeps_its_dtype_and_does_not_overflow():
    x = torch.full((2, 4, 3), 300.0, dtype=torch.float16)  # the square is beyond float16
    y = SampleRMSNorm(4, dtype=torch.float16)(x)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y, torch.ones_like(y))


def test_network_of_images_is_converted_with_its_affine_map():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    randomized(model[1])
    norm = convert(model, "rms")[1]
    assert isinstance(norm, SampleRMSNorm)
    assert torch.equal(norm.weight, model[1].weight)
    assert torch.equal(norm.bias, model[1].bias)
    back = convert(convert(model, "rms"), "batch")
    assert torch.equal(back[1].weight, model[1].weight)
    assert torch.equal(back[1].bias, model[1].bias)
    assert repr(norm) == "SampleRMSNorm(4, eps=1e-05, affine=True, shift=True)"
    assert list(norm_layers(convert(model, "rms"))) == ["1"]


def layer(dimensions, **options):
    made = DynamicTanh(4, dimensions, dtype=torch.float64, **options)
    with torch.no_grad():
        for seed, each in enumerate(made.parameters()):
            each.copy_(double(*each.shape, seed=seed))
    return made


@pytest.mark.parametrize(
    ("dimensions", "shape"),
    [(0, (3, 4)), (0, (3, 5, 4)), (1, (3, 4, 5)), (2, (3, 4, 4, 4)), (3, (2, 4, 2, 2, 2))],
)
def test_output_is_the_definition_in_every_channel(dimensions, shape):
    norm, x = layer(dimensions), double(*shape, seed=7).requires_grad_()
    channels = -1 - dimensions
    parts = [
        gamma * torch.tanh(norm.alpha[0] * part) + beta
        for gamma, beta, part in zip(norm.weight, norm.bias, x.unbind(channels), strict=True)
    ]
    expected = torch.stack(parts, channels)
    torch.testing.assert_close(norm(x), expected)
    leaves = [x, *norm.parameters()]
    got = torch.autograd.grad(norm(x).pow(3).sum(), leaves)
    torch.testing.assert_close(got, torch.autograd.grad(expected.pow(3).sum(), leaves))


def test_derivatives_of_dynamic_tanh():
    norm = layer(1)
    inputs = (double(2, 4, 3, seed=7).requires_grad_(), *norm.parameters())

    def run(x, *values):
        named = dict(zip(dict(norm.named_parameters()), values, strict=True))
        return torch.func.functional_call(norm, named, (x,))

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_initial_values_are_those_of_the_paper():
    norm = normalization("dyt", 4, 0)
    assert norm.alpha.tolist() == [0.5]
    assert norm.weight.tolist() == [1.0] * 4
    assert norm.bias.tolist() == [0.0] * 4
    assert normalization("dyt", 4, 0, alpha=0.8).alpha.item() == pytest.approx(0.8)


def test_options_leave_parameters_out():
    assert [name for name, _ in layer(0, bias=False).named_parameters()] == ["alpha", "weight"]
    assert [name for name, _ in layer(0, affine=False).named_parameters()] == ["alpha"]


def test_it_counts_as_a_kind_and_is_converted_both_ways():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    converted = convert(model, "dyt")
    assert is_norm(converted[1])
    assert kind_of(converted[1]) == "dyt"
    assert repr(converted[1]) == "DynamicTanh(4, dimensions=2)"
    assert type(convert(converted, "group")[1]) is nn.GroupNorm
    assert converted(torch.randn(2, 1, 5, 5)).abs().max() <= 1
