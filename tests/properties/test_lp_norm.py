"""What holds for l_p normalization whatever the numbers."""

import itertools
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.references.lp_norm import lp_norm

from normscope.layers.lp_function import lp_normalize, scale

orders = st.sampled_from([1.0, 1.3, 2.0, 2.7, 4.0, math.inf])
shapes = st.sampled_from([(2, 1), (5, 3), (3, 2, 4), (2, 3, 2, 2)])
seeds = st.integers(0, 2**32 - 1)
common = settings(max_examples=40, deadline=None)


def batch(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) + 0.5
    return x.requires_grad_(), torch.randn(shape, generator=generator, dtype=torch.float64)


def normalized(x, order, centred, eps=0.0):
    return lp_normalize(x, None, None, order, centred, eps)[0]


@common
@given(orders, st.booleans(), shapes, seeds)
def test_output_and_gradient_equal_the_definition(order, centred, shape, seed):
    x, gradient = batch(shape, seed)
    ones, zeros = torch.ones(shape[1]).double(), torch.zeros(shape[1]).double()
    ours = normalized(x, order, centred, 1e-3)
    theirs = lp_norm(x, ones, zeros, order, centred, 1e-3)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    if centred and order == math.inf and x.numel() == 2 * shape[1]:
        return  # two values are equally far from their mean: a tie, at the kink
    torch.testing.assert_close(
        torch.autograd.grad(ours, x, gradient),
        torch.autograd.grad(theirs, x, gradient),
        rtol=1e-7,
        atol=1e-7,
    )


@common
@given(orders, st.booleans(), shapes, seeds, st.floats(1e-6, 1e6), st.booleans())
def test_output_does_not_depend_on_the_scale_of_the_input(
    order, centred, shape, seed, factor, flip
):
    x, _ = batch(shape, seed)
    sign = -1 if flip else 1
    scaled = normalized(sign * factor * x, order, centred)
    torch.testing.assert_close(scaled, sign * normalized(x, order, centred), rtol=1e-8, atol=1e-8)


@common
@given(orders, shapes, seeds, st.floats(-100, 100))
def test_centred_output_does_not_depend_on_a_shift(order, shape, seed, shift):
    x, _ = batch(shape, seed)
    torch.testing.assert_close(
        normalized(x + shift, order, True), normalized(x, order, True), rtol=1e-8, atol=1e-8
    )


@common
@given(orders, st.booleans(), shapes, seeds)
def test_gradient_is_orthogonal_to_the_input_without_eps(order, centred, shape, seed):
    """Scaling the input changes nothing (Euler); when centred, shifting changes nothing."""
    x, gradient = batch(shape, seed)
    (to_input,) = torch.autograd.grad(normalized(x, order, centred), x, gradient)
    dims = [0, *range(2, x.dim())]
    size = (to_input * x).abs().sum() + 1
    assert ((to_input * x).sum(dims).abs() < 1e-9 * size).all()
    if centred:
        assert (to_input.sum(dims).abs() < 1e-9 * size).all()


@common
@given(shapes, seeds)
def test_scale_grows_with_the_order_up_to_the_maximum(shape, seed):
    x, _ = batch(shape, seed)
    sizes = [scale(x, order, 0.0) for order in (1, 1.5, 2, 3, 10, math.inf)]
    for smaller, larger in itertools.pairwise(sizes):
        assert (smaller <= larger * (1 + 1e-12)).all()
