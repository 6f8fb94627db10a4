"""The fast second derivative of normalization by constants, by finite differences and PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from normscope.curvature.autograd.constant_norm import constant_norm
from normscope.layers.compiled import kernels

SHAPES = [(2, 1), (5, 3), (1, 3, 2), (4, 2, 3), (3, 2, 2, 3), (2, 2, 2, 1, 3)]


def leaves(shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (shape, shape[1:2], shape[1:2])
    drawn = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    x, weight, bias = (tensor.requires_grad_() for tensor in drawn)
    return x, weight, bias


def statistics(channels: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mean, spread = torch.randn(2, channels, generator=generator, dtype=torch.float64)
    return mean, spread.square() + 0.1


def normalized(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return constant_norm(x, weight, bias, *statistics(x.shape[1]), 0.3)


@pytest.mark.parametrize("shape", SHAPES)
def test_constant_norm_equals_torch_and_has_both_derivatives(shape: tuple[int, ...]) -> None:
    x, weight, bias = leaves(shape)
    mean, variance = statistics(shape[1])
    expected = functional.batch_norm(x, mean, variance, weight, bias, False, 0.1, 0.3)
    assert torch.equal(normalized(x, weight, bias), expected)
    assert torch.autograd.gradcheck(normalized, leaves(shape))
    assert torch.autograd.gradgradcheck(normalized, leaves(shape))


@pytest.mark.parametrize("given", ["x", "x, weight", "x, bias", "weight, bias", "weight", "bias"])
def test_constant_norm_differentiates_by_any_subset(given: str) -> None:
    x, weight, bias = leaves((4, 3, 2))
    chosen = {"x": x.detach(), "weight": weight.detach(), "bias": bias.detach()}
    chosen |= {name: chosen[name].requires_grad_() for name in given.split(", ")}

    def function(*tensors: Tensor) -> Tensor:
        # squared: the gradient of a map linear in what is given would be constant
        named = dict(zip(given.split(", "), tensors, strict=True))
        return normalized(**chosen | named).square()

    inputs = tuple(chosen[name] for name in given.split(", "))
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_constant_norm_without_weight_or_bias_has_both_derivatives() -> None:
    x, weight, bias = leaves((4, 2, 3))
    assert torch.autograd.gradgradcheck(normalized, (x,))
    assert torch.autograd.gradgradcheck(lambda x, w: normalized(x, weight=w), (x, weight))
    assert torch.autograd.gradgradcheck(lambda x, b: normalized(x, bias=b), (x, bias))


def test_constant_norm_has_a_third_derivative() -> None:
    def gradient(*tensors: Tensor) -> tuple[Tensor, ...]:
        loss = torch.sin(normalized(*tensors)).sum()
        return torch.autograd.grad(loss, tensors, create_graph=True)

    assert torch.autograd.gradgradcheck(gradient, leaves((4, 2)))


def test_constant_norm_is_not_reached_by_statistics_that_move_later() -> None:
    x, weight, bias = leaves((5, 3))
    mean, variance = statistics(3)
    output = constant_norm(x, weight, bias, mean, variance, 0.3)
    mean.add_(1.0)
    variance.mul_(4.0)
    (found,) = torch.autograd.grad(output.sum(), x)
    (expected,) = torch.autograd.grad(normalized(x, weight, bias).sum(), x)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("compiled", [True, False])
def test_constant_norm_of_images_in_single_precision_is_that_in_double(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels last, where the compiled kernel takes the sums; 100 spreads from zero."""
    if not compiled:
        monkeypatch.setattr(kernels, "_kernel", lambda _: None)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, 4, 5, generator=generator) + 100
    mean, variance = torch.full((3,), 100.0), torch.tensor([0.5, 1.0, 2.0])
    products = []
    for dtype in (torch.float32, torch.float64):
        image = x.to(dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
        weight = torch.tensor([0.5, -1.0, 2.0], dtype=dtype, requires_grad=True)
        given = (image, weight, None, mean.to(dtype), variance.to(dtype), 1e-5)
        loss = torch.sin(constant_norm(*given)).sum()
        gradients = torch.autograd.grad(loss, (image, weight), create_graph=True)
        ones = [torch.ones_like(gradient) for gradient in gradients]
        products += [*gradients, *torch.autograd.grad(gradients, (image, weight), ones)]
    for single, double in zip(products[:4], products[4:], strict=True):
        # rounding of the input: about 100 times 6e-8
        assert (single.double() - double).norm() < 5e-5 * double.norm()
