"""Dynamic tanh against its definition."""

import pytest
import torch
from torch import nn

from normscope.layers import DynamicTanh, convert, is_norm, kind_of, normalization


def double(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


def test_derivatives():
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
