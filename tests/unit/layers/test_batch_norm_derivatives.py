"""Derivatives of the layers, beyond the first and in every composition."""

from __future__ import annotations

import pytest
import torch
from tests.references import batch_norm as reference
from torch import func, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from normscope.layers import BatchNorm1d, BatchNorm2d
from normscope.layers.batch_norm_function import batch_norm

# The first use of forward mode makes PyTorch script its own decompositions.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

EPS = 1e-3
PATHS = {"default": None, "closed_form": False}


def _double(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


@pytest.fixture(params=[(4, 2), (2, 2, 3), (2, 2, 2, 2), (2, 2)], ids=str)
def leaves(request):
    """Input, weight and bias."""
    tensors = _double(*request.param), _double(2, seed=1), _double(2, seed=2)
    return [tensor.requires_grad_() for tensor in tensors]


def _normalized(fused):
    return lambda x, weight, bias: batch_norm(
        x, None, None, weight, bias, training=True, eps=EPS, fused=fused
    )


@pytest.mark.parametrize("path", PATHS)
def test_first_and_second_derivatives_pass_finite_differences(path, leaves):
    function = _normalized(PATHS[path])
    assert gradcheck(function, leaves, check_forward_ad=True)
    assert gradgradcheck(function, leaves, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("path", PATHS)
def test_input_gradient_is_fact_c1(path, leaves):
    x, weight, _ = leaves
    g = _double(*x.shape, seed=3)
    (gradient,) = torch.autograd.grad(_normalized(PATHS[path])(*leaves), x, g)
    expected = reference.input_gradient(x.detach(), weight.detach(), g, EPS)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", PATHS)
def test_derivatives_by_running_statistics_pass_finite_differences(path, leaves):
    mean, variance = _double(2, seed=4), _double(2, seed=5).square() + 0.1
    fused = PATHS[path]

    def function(x, weight, bias):
        return batch_norm(x, mean, variance, weight, bias, eps=EPS, fused=fused)

    assert gradcheck(function, leaves, check_forward_ad=True)
    assert gradgradcheck(function, leaves, fast_mode=True)


def test_gradient_through_forward_tangent_equals_that_of_the_definition(leaves):
    x, weight, bias = leaves
    tangent, g = _double(*x.shape, seed=3), _double(*x.shape, seed=4)

    def gradients(function):
        with forward_ad.dual_level():
            output = function(forward_ad.make_dual(x, tangent), weight, bias)
            moved = forward_ad.unpack_dual(output).tangent
            results = torch.autograd.grad((g * moved).sin().sum(), (x, weight))
            return [forward_ad.unpack_dual(result).primal for result in results]

    expected = gradients(lambda x, w, b: reference.normalized(x, w, b, EPS))
    for result, value in zip(gradients(_normalized(None)), expected, strict=True):
        torch.testing.assert_close(result, value, rtol=1e-10, atol=1e-10)


def test_third_derivative_of_the_closed_form_equals_that_of_the_definition(leaves):
    def third(function):
        value = function(*leaves).pow(3).sum()
        first = torch.autograd.grad(value, leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.sin().sum() for g in first), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in second), leaves)

    expected = third(lambda x, w, b: reference.normalized(x, w, b, EPS))
    for result, value in zip(third(_normalized(False)), expected, strict=True):
        torch.testing.assert_close(result, value, rtol=1e-9, atol=1e-9 * value.abs().max().item())


class _Network(nn.Module):
    """Two normalized layers, and its parameters as one vector."""

    def __init__(self, norm):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 4), norm(4), nn.Tanh(), nn.Linear(4, 2), norm(2))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.double()

    def forward(self, x):
        return self.layers(x)

    def loss_at(self, x, vector):
        sizes = [parameter.numel() for parameter in self.parameters()]
        pieces = vector.split(sizes)
        params = {
            name: piece.view_as(parameter)
            for (name, parameter), piece in zip(self.named_parameters(), pieces, strict=True)
        }
        return func.functional_call(self, params, (x,)).pow(3).sum()

    @property
    def vector(self):
        return nn.utils.parameters_to_vector(self.parameters()).detach()


class _ReferenceNorm(nn.BatchNorm1d):
    def forward(self, input):
        return reference.normalized(input, self.weight, self.bias, self.eps)


HESSIANS = {
    "jacrev(jacrev)": lambda f: func.jacrev(func.jacrev(f)),
    "hessian": func.hessian,
    "jacrev(grad)": lambda f: func.jacrev(func.grad(f)),
    "jacfwd(grad)": lambda f: func.jacfwd(func.grad(f)),
    "jacrev(jacfwd)": lambda f: func.jacrev(func.jacfwd(f)),
    "jacfwd(jacfwd)": lambda f: func.jacfwd(func.jacfwd(f)),
    "double backward": lambda f: lambda v: reference.hessian(f, v),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_hessian_is_symmetric_and_equals_the_reference(name):
    """PyTorch's own layers are 3 to 8 % off under an inner jacrev (2.13), without a word."""
    x = _double(7, 3)
    network, plain = _Network(BatchNorm1d), _Network(_ReferenceNorm)
    expected = reference.hessian(lambda vector: plain.loss_at(x, vector), plain.vector)
    result = HESSIANS[name](lambda vector: network.loss_at(x, vector))(network.vector)
    scale = expected.abs().max()
    assert ((result - expected).abs().max() / scale) < 1e-10
    assert ((result - result.T).abs().max() / scale) < 1e-10


def test_hessian_vector_product_by_jvp_of_grad_equals_the_reference():
    x = _double(7, 3)
    network = _Network(BatchNorm1d)
    direction = _double(*network.vector.shape, seed=5)
    gradient = func.grad(lambda vector: network.loss_at(x, vector))
    _, product = func.jvp(gradient, (network.vector,), (direction,))
    matrix = reference.hessian(lambda vector: network.loss_at(x, vector), network.vector)
    torch.testing.assert_close(product, matrix @ direction, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_vjp_and_jvp_of_a_convolutional_layer_are_adjoint(training):
    layer = BatchNorm2d(3).double().train(training)
    x, tangent, cotangent = (_double(4, 3, 2, 2, seed=seed) for seed in range(3))
    output, pullback = func.vjp(layer, x)
    _, pushed = func.jvp(layer, (x,), (tangent,))
    torch.testing.assert_close(output, layer.train(training)(x), rtol=0, atol=1e-12)
    (pulled,) = pullback(cotangent)
    assert (pushed * cotangent).sum().item() == pytest.approx((pulled * tangent).sum().item())
    assert pushed.abs().max() > 0.1
