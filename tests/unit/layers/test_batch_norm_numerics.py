"""Hard inputs: large means, half precision, memory layouts, equal values, tiny batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.layers import BatchNorm1d, BatchNorm2d
from normscope.layers.batch_norm_function import batch_norm

PATHS = {"default": None, "closed_form": False}


def _normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _with_gradients(layer, x, g):
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    output = layer(x)
    output.backward(g)
    return output.detach(), x.grad, layer.weight.grad


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("layout", ["vectors", "images", "channels_last", "one_bad_channel"])
def test_large_mean_costs_no_digits(layout, path):
    shape = (16, 8, 8, 8) if layout in ("images", "channels_last") else (256, 8)
    x = 1e4 + 1e-2 * _normal(*shape)
    if layout == "one_bad_channel":
        x[:, 1:] = _normal(256, 7)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    g = _normal(*shape, seed=1)
    make = BatchNorm1d if x.dim() == 2 else BatchNorm2d
    ours, exact = make(8), make(8).double()
    ours.fused = PATHS[path]
    exact.fused = False
    results = _with_gradients(ours, x, g)
    for result, expected in zip(
        results, _with_gradients(exact, x.double(), g.double()), strict=True
    ):
        scale = expected.abs().max().item()
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-5 * scale)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(
            getattr(ours, name).double(), getattr(exact, name), rtol=3e-7, atol=1e-8
        )


def test_large_mean_keeps_second_derivative_and_momentum_one():
    x, g = (1e4 + 1e-2 * _normal(64, 3)), _normal(64, 3, seed=1)

    def second(layer, x, g):
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad((layer(x) * g).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    ours, exact = BatchNorm1d(3, momentum=1.0), BatchNorm1d(3, momentum=1.0).double()
    exact.fused = False
    expected = second(exact, x.double(), g.double())
    atol = 1e-4 * expected.abs().max().item()
    torch.testing.assert_close(second(ours, x, g).double(), expected, rtol=0, atol=atol)
    torch.testing.assert_close(ours.running_var.double(), x.double().var(0), rtol=1e-5, atol=0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("channels", ["all", "one"])
def test_large_running_mean_costs_no_digits(channels, path):
    x = 1e4 + 1e-2 * _normal(256, 4)
    mean, variance = torch.full((4,), 1e4), torch.full((4,), 1e-4)
    if channels == "one":
        x[:, 1:], mean[1:], variance[1:] = _normal(256, 3), 0.0, 1.0
    weight, bias = _normal(2, 4, seed=2)
    vectors = mean, variance, weight, bias
    exact = (x.double() - mean.double()) / (variance.double() + 1e-5).sqrt() * weight + bias
    leaf = x.clone().requires_grad_()
    output = batch_norm(leaf, *vectors, fused=PATHS[path])
    torch.testing.assert_close(output.double(), exact, rtol=2e-6, atol=2e-6)
    (gradient,) = torch.autograd.grad(output.sum(), leaf)
    torch.testing.assert_close(gradient, (weight / (variance + 1e-5).sqrt()).expand(256, 4))


def test_ordinary_running_statistics_take_the_kernel_bit_for_bit():
    x = 3 + _normal(64, 8)
    ours, theirs = BatchNorm1d(8, momentum=1.0), nn.BatchNorm1d(8, momentum=1.0)
    ours(x), theirs(x)
    assert torch.equal(ours.eval()(x), theirs.eval()(x))


def test_ordinary_input_takes_the_kernel_bit_for_bit():
    x = _normal(64, 8)
    ours, theirs = BatchNorm1d(8), nn.BatchNorm1d(8)
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours.running_var, theirs.running_var)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38])
def test_values_that_are_no_numbers_give_what_torch_gives(value):
    x = _normal(16, 4)
    x[3, 1] = value
    ours, theirs = BatchNorm1d(4), nn.BatchNorm1d(4)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0, equal_nan=True)
    for name, expected in theirs.state_dict().items():
        torch.testing.assert_close(
            ours.state_dict()[name], expected, rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e4])
def test_equal_values_give_the_bias_and_finite_gradients(value, path):
    layer = BatchNorm1d(3)
    layer.fused = PATHS[path]
    nn.init.constant_(layer.bias, 0.25)
    output, gradient, _ = _with_gradients(layer, torch.full((7, 3), value), _normal(7, 3))
    torch.testing.assert_close(output, torch.full((7, 3), 0.25), rtol=0, atol=2e-5)
    assert torch.isfinite(gradient).all()
    torch.testing.assert_close(layer.running_var, torch.full((3,), 0.9), rtol=1e-6, atol=0)


@pytest.mark.parametrize("path", PATHS)
def test_batch_of_two_gives_signs(path):
    x = torch.tensor([[1.0, 5.0], [3.0, 1.0]])
    output = batch_norm(x, training=True, eps=1e-10, fused=PATHS[path])
    torch.testing.assert_close(output, torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("parameters", [torch.float32, None], ids=["float32", "same"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_keeps_statistics_in_single(dtype, parameters, path):
    # In half precision a mean of 4096 values near 100 would be off by whole units.
    x = (100 + _normal(512, 4, 8)).to(dtype)
    layer = BatchNorm1d(4, dtype=parameters or dtype)
    layer.fused = PATHS[path]
    output = layer(x)
    exact = batch_norm(x.double(), training=True, fused=False)
    assert output.dtype == dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), exact, rtol=unit, atol=2e-3)
    assert layer.running_mean.dtype == (parameters or dtype)
    expected = 0.1 * x.double().mean((0, 2))
    rtol = 1e-5 if parameters else unit
    torch.testing.assert_close(layer.running_mean.double(), expected, rtol=rtol, atol=0)


@pytest.mark.parametrize("path", PATHS)
def test_half_precision_gradients_equal_torchs(path):
    x, g = _normal(32, 4, 5).bfloat16(), _normal(32, 4, 5, seed=1).bfloat16()
    ours, theirs = BatchNorm1d(4), nn.BatchNorm1d(4)
    ours.fused = PATHS[path]
    expected = _with_gradients(theirs, x, g)
    for result, value in zip(_with_gradients(ours, x, g), expected, strict=True):
        assert result.dtype == value.dtype
        torch.testing.assert_close(result, value, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_autocast_gives_torchs_type_and_values(dtype, path):
    x = _normal(32, 4).to(dtype)
    ours, theirs = BatchNorm1d(4), nn.BatchNorm1d(4)
    ours.fused = PATHS[path]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, expected = ours(x), theirs(x)
    assert output.dtype == expected.dtype == dtype
    torch.testing.assert_close(output, expected)
    assert ours.running_mean.dtype == torch.float32


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_channels_last_is_kept_and_changes_no_value(training, path):
    x, g = _normal(4, 6, 5, 3), _normal(4, 6, 5, 3, seed=1)
    layer = BatchNorm2d(6).train(training)
    layer.fused = PATHS[path]
    last = x.contiguous(memory_format=torch.channels_last)
    output, gradient, _ = _with_gradients(layer, last, g)
    assert output.is_contiguous(memory_format=torch.channels_last)
    plain = _with_gradients(BatchNorm2d(6).train(training), x, g)
    torch.testing.assert_close(output, plain[0], rtol=0, atol=2e-6)
    torch.testing.assert_close(gradient, plain[1], rtol=0, atol=2e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.transpose(0, 2),
        lambda t: t[::2, :, ::3],
        lambda t: t[:, :, :1].expand(-1, -1, 4),
    ],
    ids=["transposed", "strided", "expanded"],
)
def test_non_contiguous_input_equals_its_contiguous_copy(view, path):
    x = view(_normal(8, 4, 9))
    assert not x.is_contiguous()
    layer = BatchNorm1d(4)
    layer.fused = PATHS[path]
    torch.testing.assert_close(layer(x), BatchNorm1d(4)(x.contiguous()), rtol=0, atol=2e-6)


@pytest.mark.parametrize("path", PATHS)
def test_empty_batch_gives_an_empty_output_and_leaves_running_statistics(path):
    layer = BatchNorm2d(5)
    layer.fused = PATHS[path]
    assert layer(torch.zeros(0, 5, 2, 2)).shape == (0, 5, 2, 2)
    assert torch.equal(layer.running_mean, torch.zeros(5))
    assert torch.equal(layer.running_var, torch.ones(5))
