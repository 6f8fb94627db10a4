"""The closed form: against the dense Jacobian, autograd of the definition, finite differences."""

from __future__ import annotations

import pytest
import torch
from tests.references import batch_norm as reference
from torch import func
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from normscope.layers.standardize import (
    LocalBatch,
    channel_axes,
    standardize,
    standardize_by_definition,
)

# The first use of forward mode makes PyTorch script its own decompositions.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

SHAPES = [(2, 3), (6, 3), (4, 2, 3), (2, 3, 2, 2), (2, 2, 2, 1, 2)]


def _double(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def _closed_form(x, eps=1e-3):
    return standardize(x, eps, LocalBatch.of(x))


def _definition(x, eps=1e-3):
    return standardize_by_definition(x, eps, LocalBatch.of(x))


@pytest.mark.parametrize("shape", SHAPES)
def test_results_equal_those_of_var_and_mean(shape):
    x = _double(*shape)
    standardized, mean, variance = _closed_form(x)
    axes = channel_axes(x.dim())
    torch.testing.assert_close(mean, x.mean(axes, keepdim=True), rtol=0, atol=1e-14)
    expected = x.var(axes, unbiased=False, keepdim=True)
    torch.testing.assert_close(variance, expected, rtol=1e-13, atol=0)
    expected = reference.normalized(x, None, None, 1e-3)
    torch.testing.assert_close(standardized, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_equals_dense_jacobian(shape):
    x, g = _double(*shape).requires_grad_(), _double(*shape, seed=1)
    (gradient,) = torch.autograd.grad(_closed_form(x)[0], x, g)
    ones = torch.ones(shape[1], dtype=torch.float64)
    expected = reference.input_gradient(x.detach(), ones, g, 1e-3)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
def test_first_and_second_derivatives_pass_finite_differences(shape):
    x = _double(*shape).requires_grad_()
    assert gradcheck(_closed_form, (x,), check_forward_ad=True, check_batched_forward_grad=True)
    assert gradgradcheck(_closed_form, (x,), check_fwd_over_rev=True)


def _third_order(function, x, weights):
    """Gradient of a scalar made of second derivatives, all three results taking part."""
    value = sum((r.pow(3) * w).sum() for r, w in zip(function(x), weights, strict=True))
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sin().sum(), x, create_graph=True)
    return torch.autograd.grad(second.square().sum(), x)[0]


def test_third_derivative_equals_that_of_the_definition():
    x = _double(6, 3).requires_grad_()
    weights = [_double(6, 3, seed=1), _double(1, 3, seed=2), _double(1, 3, seed=3)]
    expected = _third_order(_definition, x, weights)
    gradient = _third_order(_closed_form, x, weights)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9)


def test_gradient_through_a_forward_mode_tangent_equals_that_of_the_definition():
    x, tangent, weights = _double(6, 3).requires_grad_(), _double(6, 3, seed=1), _double(6, 3)

    def gradient(function):
        with forward_ad.dual_level():
            output = function(forward_ad.make_dual(x, tangent))[0]
            moved = forward_ad.unpack_dual(output).tangent
            result = torch.autograd.grad((moved * weights).sin().sum(), x)[0]
            return forward_ad.unpack_dual(result).primal

    expected = gradient(_definition)
    torch.testing.assert_close(gradient(_closed_form), expected, rtol=1e-11, atol=1e-11)


def _nested_jvp(function):
    along, across = _double(4, 2, seed=2), _double(4, 2, seed=3)

    def inner(x):
        return func.jvp(function, (x,), (along,))[1]

    return lambda x: func.jvp(inner, (x,), (across,))[1]


TRANSFORMS = {
    "jacrev(jacrev)": lambda f: func.jacrev(func.jacrev(f)),
    "jacfwd(jacrev)": lambda f: func.jacfwd(func.jacrev(f)),
    "jacrev(jacfwd)": lambda f: func.jacrev(func.jacfwd(f)),
    "jacfwd(jacfwd)": lambda f: func.jacfwd(func.jacfwd(f)),
    "jvp(jvp)": lambda f: _nested_jvp(f),
    "jacrev(jacrev(grad))": lambda f: func.jacrev(func.jacrev(func.grad(lambda x: f(x).sum()))),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_nested_transforms_equal_those_of_the_definition(name):
    x, weights = _double(4, 2), _double(4, 2, seed=1)

    def of(function):
        return lambda x: sum(
            (weights * function(x)[0].pow(3)).sum(0) + r.sum(0) for r in function(x)
        )

    expected = TRANSFORMS[name](of(_definition))(x)
    result = TRANSFORMS[name](of(_closed_form))(x)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)


def test_vmap_over_the_batch_of_batches_equals_a_loop():
    many = _double(3, 5, 2, 4)
    batched = func.vmap(_closed_form)(many)
    for results, looped in zip(batched, zip(*map(_closed_form, many), strict=True), strict=True):
        torch.testing.assert_close(results, torch.stack(looped), rtol=0, atol=1e-14)


def test_vmap_over_an_inner_axis_of_the_gradient_equals_a_loop():
    many = _double(5, 2, 3)
    gradient = func.grad(lambda x: _closed_form(x)[0].pow(3).sum())
    batched = func.vmap(gradient, in_dims=2, out_dims=2)(many)
    looped = torch.stack([gradient(many[..., i]) for i in range(3)], dim=2)
    torch.testing.assert_close(batched, looped, rtol=0, atol=1e-13)


@pytest.mark.parametrize("by", [_closed_form, _definition])
def test_large_mean_costs_no_digits_in_single_precision(by):
    x = 1e4 + 1e-2 * torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    standardized, mean, variance = by(x, eps=1e-8)
    exact, exact_mean, exact_variance = by(x.double(), eps=1e-8)
    torch.testing.assert_close(standardized.double(), exact, rtol=0, atol=5e-6)
    torch.testing.assert_close(variance.double(), exact_variance, rtol=1e-5, atol=0)
    torch.testing.assert_close(mean.double(), exact_mean, rtol=6e-8, atol=0)  # half a unit


def test_equal_values_standardize_to_zero_with_finite_gradient():
    x = torch.full((7, 3), 0.1, requires_grad=True)
    standardized, _, variance = _closed_form(x, eps=1e-5)
    standardized.sum().backward()
    assert standardized.abs().max() < 1e-5
    assert (variance >= 0).all()
    assert torch.isfinite(x.grad).all()


def test_backward_of_one_result_alone_needs_no_other():
    x = _double(5, 2).requires_grad_()
    (gradient,) = torch.autograd.grad(_closed_form(x)[1].sum(), x)
    torch.testing.assert_close(gradient, torch.full_like(gradient, 1 / 5))
