"""The closed-form gradient of l_p normalization against autograd and finite differences."""

import itertools
import math

import pytest
import torch
from tests.references.lp_norm import lp_norm
from torch.autograd import gradcheck, gradgradcheck

from normscope.layers.lp_formulas import closed_form_gradient, plain_lp_norm, scale, slope
from normscope.layers.lp_function import LpNormalize, lp_normalize

ORDERS = [1, 1.5, 2, 3, math.inf]
SHAPES = [(7, 3), (4, 3, 5), (3, 2, 2, 3), (2, 2, 2, 2, 3)]
CASES = list(itertools.product(ORDERS, [False, True]))


def inputs(shape, seed=0, dtype=torch.float64):
    """Input, weight and bias; every |x| and |x - mean| is away from zero and from ties."""
    generator = torch.Generator().manual_seed(seed)
    x = 1.5 * torch.randn(shape, generator=generator, dtype=dtype) + 0.4
    x = x + 0.1 * x.sign()
    weight, bias = torch.randn(2, shape[1], generator=generator, dtype=dtype)
    return tuple(t.clone().requires_grad_() for t in (x, weight, bias))


@pytest.mark.parametrize(("order", "centred"), CASES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", [LpNormalize.apply, plain_lp_norm])
def test_output_and_gradients_equal_the_definition(order, centred, shape, function):
    sources = inputs(shape)
    y, mean, size = function(*sources, order, centred, 1e-3)
    expected, expected_mean, expected_size = lp_norm(*sources, order, centred, 1e-3)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mean, expected_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(size, expected_size, rtol=1e-12, atol=1e-12)
    gradient = torch.randn(shape, dtype=torch.float64)
    theirs = torch.autograd.grad(expected, sources, gradient)
    torch.testing.assert_close(
        torch.autograd.grad(y, sources, gradient), theirs, rtol=1e-11, atol=1e-11
    )
    x, weight, _ = sources
    closed = closed_form_gradient(gradient, x, weight, order, centred, 1e-3)
    torch.testing.assert_close(closed, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_gradcheck_and_gradgradcheck(order, centred):
    sources = inputs((5, 2, 2), seed=1)

    def output(x, weight, bias):
        return lp_normalize(x, weight, bias, order, centred, 1e-2)[0]

    assert gradcheck(output, sources, check_forward_ad=False)
    assert gradgradcheck(output, sources)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, on first use
@pytest.mark.parametrize(("order", "centred"), CASES)
def test_forward_mode_gradcheck(order, centred):
    sources = inputs((5, 2, 2), seed=2)

    def output(x, weight, bias):
        return LpNormalize.apply(x, weight, bias, order, centred, 1e-2)[0]

    assert gradcheck(output, sources, check_forward_ad=True, check_backward_ad=False)


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_gradients_without_weight_or_bias(order, centred):
    x, _, _ = inputs((6, 3))
    ones, zeros = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    y = LpNormalize.apply(x, None, None, order, centred, 1e-3)[0]
    expected = lp_norm(x, ones, zeros, order, centred, 1e-3)[0]
    gradient = torch.randn_like(y)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(
        torch.autograd.grad(y, x, gradient), torch.autograd.grad(expected, x, gradient)
    )


def test_only_wanted_gradients_are_made():
    x, weight, bias = inputs((6, 3))
    y = LpNormalize.apply(x.detach(), weight, bias, 1, False, 1e-3)[0]
    y.sum().backward()
    assert weight.grad is not None
    y = LpNormalize.apply(x, weight.detach(), None, 1, False, 1e-3)[0]
    assert torch.autograd.grad(y.square().sum(), x)[0].isfinite().all()


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_third_derivative_equals_the_definitions(order, centred):
    x, weight, bias = inputs((5, 1))

    def third(function):
        value = function(x, weight, bias, order, centred, 1e-2)[0].pow(3).sum()
        for _ in range(3):
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            value = (gradient * torch.linspace(-1, 2, 5, dtype=torch.float64)[:, None]).sum()
        return value

    torch.testing.assert_close(third(LpNormalize.apply), third(lp_norm), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("centred", [False, True])
def test_ties_of_the_maximum_share_the_gradient(centred):
    x = torch.tensor([[2.0], [-2.0], [1.0], [-1.0]], requires_grad=True)  # mean 0
    fused = LpNormalize.apply(x, None, None, math.inf, centred, 0.0)[0]
    plain = plain_lp_norm(x, None, None, math.inf, centred, 0.0)[0]
    gradient = torch.tensor([[1.0], [2.0], [3.0], [5.0]])
    (ours,) = torch.autograd.grad(fused, x, gradient)
    (theirs,) = torch.autograd.grad(plain, x, gradient)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        slope(x, scale(x, math.inf, 0.0), math.inf, 0.0).flatten(),
        torch.tensor([0.5, -0.5, 0.0, 0.0]),
    )


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_zero_input_gives_the_bias_and_finite_gradients(order, centred):
    x = torch.zeros(4, 2, requires_grad=True)
    weight, bias = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    for function in (LpNormalize.apply, plain_lp_norm):
        y, _, size = function(x, weight, bias, order, centred, 1e-5)
        assert torch.equal(y, bias.expand(4, 2))
        root = 1e-5 if order == math.inf else 1e-5 ** (1 / order)
        torch.testing.assert_close(size, torch.full((2,), root))
        gradient = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
        (ours,) = torch.autograd.grad(y, x, gradient)
        expected = weight / size * (gradient - gradient.mean(0))
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(("order", "centred"), CASES)
@pytest.mark.parametrize("size", [1e-25, 1e-12, 1e12, 1e25])
def test_no_power_overflows_or_vanishes_in_float32(order, centred, size):
    x, weight, bias = inputs((8, 3), dtype=torch.float32)
    large = (x.detach() * size).requires_grad_()
    eps = 1e-10 if size > 1 else 0.0
    gradient = torch.randn_like(x)
    for function in (LpNormalize.apply, plain_lp_norm):
        y = function(large, weight, bias, order, centred, eps)[0]
        expected = lp_norm(x.double(), weight.double(), bias.double(), order, centred, 0.0)[0]
        torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
        (ours,) = torch.autograd.grad(y, large, gradient)
        (theirs,) = torch.autograd.grad(expected, x, gradient.double())
        torch.testing.assert_close(ours * size, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ORDERS)
def test_spread_far_below_the_mean_is_kept_when_centred(order):
    """1e4 with a spread of 1e-2 in float32: the spread itself has three digits left."""
    generator = torch.Generator().manual_seed(0)
    x = (1e4 + torch.rand(64, 2, generator=generator) * 0.02).requires_grad_()
    y = LpNormalize.apply(x, None, None, order, True, 0.0)[0]
    mean = x.detach().mean(0)  # float32 holds a mean of 1e4 to 5e-4: part of the statement
    deviation = (x.detach() - mean).double()
    expected = deviation / scale(deviation, order, 0.0)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_memory_formats_agree(order, centred):
    x, weight, bias = inputs((4, 3, 5, 2), dtype=torch.float32)
    gradient = torch.randn_like(x)
    plain_y = LpNormalize.apply(x, weight, bias, order, centred, 1e-5)[0]
    expected = torch.autograd.grad(plain_y, (x, weight, bias), gradient)
    strided = torch.empty(5, 4, 2, 3).permute(1, 3, 0, 2)
    for layout in (x.detach().to(memory_format=torch.channels_last), strided.copy_(x.detach())):
        other = layout.requires_grad_()
        y = LpNormalize.apply(other, weight, bias, order, centred, 1e-5)[0]
        torch.testing.assert_close(y, plain_y)
        for upstream in (gradient, gradient.to(memory_format=torch.channels_last)):
            ours = torch.autograd.grad(y, (other, weight, bias), upstream, retain_graph=True)
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    last = x.detach().to(memory_format=torch.channels_last)
    y = LpNormalize.apply(last, weight, bias, order, centred, 1e-5)[0]
    assert y.is_contiguous(memory_format=torch.channels_last)
