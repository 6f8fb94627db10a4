"""The closed-form gradient of l_p normalization against autograd and finite differences."""

import itertools
import math

import pytest
import torch
from tests.references.lp_norm import lp_norm
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from normscope.layers import lp_function
from normscope.layers.lp_function import (
    LpNormalize,
    closed_form_gradient,
    fused_output,
    lp_normalize,
    plain_lp_norm,
    scale,
    slope,
)

ORDERS = [1, 1.5, 2, 3, math.inf]
SHAPES = [(7, 3), (4, 3, 5), (3, 2, 2, 3), (2, 2, 2, 2, 3)]
CASES = list(itertools.product(ORDERS, [False, True]))


def closed_form(x, weight, bias, order, centred, eps):
    """Output, mean and scale by PyTorch's kernels, the gradient in closed form."""
    with torch.no_grad():
        results = fused_output(x, weight, bias, order, centred, eps)
    output = LpNormalize.apply(x, weight, bias, (order, centred, eps), results)
    return output, results[1], results[2]


def inputs(shape, seed=0, dtype=torch.float64):
    """Input, weight and bias; every |x| and |x - mean| is away from zero and from ties."""
    generator = torch.Generator().manual_seed(seed)
    x = 1.5 * torch.randn(shape, generator=generator, dtype=dtype) + 0.4
    x = x + 0.1 * x.sign()
    weight, bias = torch.randn(2, shape[1], generator=generator, dtype=dtype)
    return tuple(t.clone().requires_grad_() for t in (x, weight, bias))


@pytest.mark.parametrize(("order", "centred"), CASES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", [closed_form, plain_lp_norm])
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
        return lp_normalize(x, weight, bias, order, centred, 1e-2)[0]

    assert gradcheck(output, sources, check_forward_ad=True, check_backward_ad=False)


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_gradients_without_weight_or_bias(order, centred):
    x, _, _ = inputs((6, 3))
    ones, zeros = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    y = closed_form(x, None, None, order, centred, 1e-3)[0]
    expected = lp_norm(x, ones, zeros, order, centred, 1e-3)[0]
    gradient = torch.randn_like(y)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(
        torch.autograd.grad(y, x, gradient), torch.autograd.grad(expected, x, gradient)
    )


def test_only_wanted_gradients_are_made():
    x, weight, bias = inputs((6, 3))
    y = closed_form(x.detach(), weight, bias, 1, False, 1e-3)[0]
    y.sum().backward()
    assert weight.grad is not None
    y = closed_form(x, weight.detach(), None, 1, False, 1e-3)[0]
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

    torch.testing.assert_close(third(closed_form), third(lp_norm), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("centred", [False, True])
def test_ties_of_the_maximum_share_the_gradient(centred):
    x = torch.tensor([[2.0], [-2.0], [1.0], [-1.0]], requires_grad=True)  # mean 0
    fused = closed_form(x, None, None, math.inf, centred, 0.0)[0]
    plain = plain_lp_norm(x, None, None, math.inf, centred, 0.0)[0]
    gradient = torch.tensor([[1.0], [2.0], [3.0], [5.0]])
    (ours,) = torch.autograd.grad(fused, x, gradient)
    (theirs,) = torch.autograd.grad(plain, x, gradient)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        slope(x, scale(x, math.inf, 0.0), math.inf).flatten(),
        torch.tensor([0.5, -0.5, 0.0, 0.0]),
    )


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_zero_input_gives_the_bias_and_finite_gradients(order, centred):
    x = torch.zeros(4, 2, requires_grad=True)
    weight, bias = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    for function in (closed_form, plain_lp_norm):
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
    for function in (closed_form, plain_lp_norm):
        y = function(large, weight, bias, order, centred, eps)[0]
        expected = lp_norm(x.double(), weight.double(), bias.double(), order, centred, 0.0)[0]
        torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
        (ours,) = torch.autograd.grad(y, large, gradient)
        (theirs,) = torch.autograd.grad(expected, x, gradient.double())
        torch.testing.assert_close(ours * size, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("order", "centred"), CASES)
@pytest.mark.parametrize("function", [lp_normalize, plain_lp_norm])
@pytest.mark.parametrize("layout", ["all", "one_channel", "images"])
def test_spread_far_below_the_mean_is_kept(order, centred, function, layout):
    """1e4 with a spread of 1e-2 in float32, against the same numbers in float64."""
    generator = torch.Generator().manual_seed(0)
    shape = (16, 3, 8, 4) if layout == "images" else (512, 3)
    x = 1e4 + 1e-2 * torch.randn(shape, generator=generator)
    if layout == "one_channel":
        x[:, 1:] = torch.randn(512, 2, generator=generator)
    x.requires_grad_()
    gradient = torch.randn(shape, generator=generator)
    exact = x.detach().double().requires_grad_()
    y, mean, size = function(x, None, None, order, centred, 1e-10)
    expected, exact_mean, exact_size = plain_lp_norm(exact, None, None, order, centred, 1e-10)
    dims = [0, *range(2, x.dim())]
    spread = expected.detach().std(dims, keepdim=True)
    assert ((y - expected).abs() < 1e-5 * spread).all()
    torch.testing.assert_close(mean.double(), exact_mean, rtol=3e-7, atol=1e-7)
    torch.testing.assert_close(size.double(), exact_size, rtol=1e-5, atol=0)
    (ours,) = torch.autograd.grad(y, x, gradient)
    (theirs,) = torch.autograd.grad(expected, exact, gradient.double())
    largest = theirs.abs().amax(dims, keepdim=True)
    assert ((ours - theirs).abs() < 1e-4 * largest).all()


@pytest.mark.parametrize("centred", [False, True])
def test_only_input_with_a_lost_spread_leaves_the_kernel(centred, monkeypatch):
    plain = []
    monkeypatch.setattr(lp_function, "plain_lp_norm", lambda *_: plain.append(1) or (0, 0, 0))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 3, generator=generator)
    late = torch.zeros(512, 3)
    late[-1] = 1  # no spread among the first values
    for ordinary in (x, x.relu(), x + 10, late):
        lp_normalize(ordinary, None, None, 1, centred, 1e-5)
    assert not plain
    lp_normalize(1e4 + 1e-2 * x, None, None, 1, centred, 1e-5)
    assert plain


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, on first use
@pytest.mark.parametrize(("order", "centred"), CASES)
def test_gradient_of_a_forward_mode_tangent_is_the_hessian_product(order, centred):
    x, weight, bias = inputs((5, 2, 2), seed=3)
    direction = torch.randn(x.shape, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(
        lp_norm(x, weight, bias, order, centred, 1e-2)[0].pow(3).sum(), x, create_graph=True
    )
    (expected,) = torch.autograd.grad((gradient * direction).sum(), x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, direction)
        y = lp_normalize(dual, weight, bias, order, centred, 1e-2)[0]
        tangent = forward_ad.unpack_dual(y.pow(3).sum()).tangent
        (ours,) = torch.autograd.grad(tangent, x)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, on first use
@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("centred", [False, True])
def test_even_order_has_its_derivatives_at_zero(order, centred):
    """At a value, or a deviation, of exactly zero the power is as smooth as anywhere."""
    x = torch.tensor([[0.0], [1.0], [-2.0], [0.5], [0.5]], dtype=torch.float64)  # mean 0
    offset = 0.25 if centred else 0.0  # exact in binary: the first deviation is zero
    x = x + offset
    cube = torch.arange(1.0, 6.0, dtype=torch.float64)[:, None]

    def loss(x, power):
        y = (x - x.mean()) if centred else x
        size = (power(y).mean() + 1e-2) ** (1 / order)
        return (cube * ((x - x.mean()) / size).pow(3)).sum()

    def product(t):  # without the size of t
        return math.prod([t] * order)

    expected = torch.autograd.functional.hessian(lambda x: loss(x, product), x)

    def ours(x):
        return (cube * lp_normalize(x, None, None, order, centred, 1e-2)[0].pow(3)).sum()

    for hessian in (
        torch.func.hessian(ours),
        torch.func.jacrev(torch.func.jacrev(ours)),
        lambda x: torch.autograd.functional.hessian(ours, x),
    ):
        torch.testing.assert_close(hessian(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("order", "centred"), CASES)
def test_memory_formats_agree(order, centred):
    x, weight, bias = inputs((4, 3, 5, 2), dtype=torch.float32)
    gradient = torch.randn_like(x)
    plain_y = closed_form(x, weight, bias, order, centred, 1e-5)[0]
    expected = torch.autograd.grad(plain_y, (x, weight, bias), gradient)
    strided = torch.empty(5, 4, 2, 3).permute(1, 3, 0, 2)
    for layout in (x.detach().to(memory_format=torch.channels_last), strided.copy_(x.detach())):
        other = layout.requires_grad_()
        y = closed_form(other, weight, bias, order, centred, 1e-5)[0]
        torch.testing.assert_close(y, plain_y)
        for upstream in (gradient, gradient.to(memory_format=torch.channels_last)):
            ours = torch.autograd.grad(y, (other, weight, bias), upstream, retain_graph=True)
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    last = x.detach().to(memory_format=torch.channels_last)
    y = closed_form(last, weight, bias, order, centred, 1e-5)[0]
    assert y.is_contiguous(memory_format=torch.channels_last)
