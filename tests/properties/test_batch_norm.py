"""Invariances of batch normalization, over random shapes and values."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.references import batch_norm as reference

from normscope.layers.batch_norm_function import batch_norm

EPS = 1e-5
MOMENTUM = 0.3

shapes = st.tuples(
    st.integers(2, 6), st.integers(1, 4), st.lists(st.integers(1, 4), max_size=3).map(tuple)
).map(lambda parts: (parts[0], parts[1], *parts[2]))
seeds = st.integers(0, 2**31 - 1)
paths = st.sampled_from([None, False])
quick = settings(max_examples=40, deadline=None)


def _draw(shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, *shape, dtype=torch.float64, generator=generator)


def _along(vector, like):
    return vector.view(1, -1, *(1,) * (like.dim() - 2))


@quick
@given(shapes, seeds, paths)
def test_output_gradient_and_statistics_equal_the_reference(shape, seed, fused):
    x, g = _draw(shape, seed)
    channels = shape[1]
    weight, bias = _draw((channels,), seed + 1)
    mean, variance = torch.zeros(channels).double(), torch.ones(channels).double()
    expected_statistics = reference.running(x, mean, variance, MOMENTUM)
    leaf = x.clone().requires_grad_()
    output = batch_norm(leaf, mean, variance, weight, bias, True, MOMENTUM, EPS, fused=fused)
    (gradient,) = torch.autograd.grad(output, leaf, g)
    # Two values may lie close together: then s is small, and 1/s multiplies every rounding.
    tightness = 1 / x.transpose(0, 1).flatten(1).std(1, unbiased=False).min().item()
    atol = 1e-12 * max(1.0, tightness) ** 2
    expected = reference.normalized(x, weight, bias, EPS)
    torch.testing.assert_close(output.detach(), expected, rtol=0, atol=atol)
    expected = reference.input_gradient(x, weight, g, EPS)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=atol)
    for result, expected in zip((mean, variance), expected_statistics, strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-13)


@quick
@given(shapes, seeds, paths, st.floats(0.1, 10.0), st.floats(-10.0, 10.0))
def test_output_does_not_see_scale_and_shift_of_a_channel(shape, seed, fused, scale, shift):
    x, _ = _draw(shape, seed)
    step = torch.arange(1.0, shape[1] + 1, dtype=torch.float64)
    # Each channel its own map; eps is scaled along, which makes the invariance exact.
    moved = _along(scale * step, x) * x + _along(shift / step, x)
    result = torch.cat(
        [
            batch_norm(
                moved[:, [channel]],
                training=True,
                eps=EPS * float(scale * step[channel]) ** 2,
                fused=fused,
            )
            for channel in range(shape[1])
        ],
        dim=1,
    )
    expected = batch_norm(x, training=True, eps=EPS, fused=fused)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-8)


@quick
@given(shapes, seeds, paths)
def test_negated_input_gives_negated_output(shape, seed, fused):
    x, _ = _draw(shape, seed)
    output = batch_norm(x, training=True, fused=fused)
    torch.testing.assert_close(
        batch_norm(-x, training=True, fused=fused), -output, rtol=0, atol=1e-12
    )


@quick
@given(shapes, seeds, paths)
def test_input_gradient_is_orthogonal_to_ones_and_nearly_to_the_output(shape, seed, fused):
    x, g = _draw(shape, seed)
    leaf = x.clone().requires_grad_()
    output = batch_norm(leaf, training=True, eps=EPS, fused=fused)
    (gradient,) = torch.autograd.grad(output, leaf, g)
    flat = [t.detach().transpose(0, 1).flatten(1) for t in (gradient, output, g, x)]
    dx, standardized, arrived, values = flat
    variance = values.var(1, unbiased=False)
    spread = torch.sqrt(variance + EPS)
    size = arrived.norm(dim=1) * dx.size(1) / spread
    assert (dx.sum(1).abs() <= 1e-12 * size).all()
    # <dx, x_hat> = <g, x_hat> eps / s^3: zero for eps = 0, where the output ignores scale.
    expected = (arrived * standardized).sum(1) * EPS / spread**3
    assert ((dx * standardized).sum(1) - expected).abs().le(1e-12 * size).all()
