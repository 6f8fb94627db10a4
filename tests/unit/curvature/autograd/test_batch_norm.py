"""The fast second derivative of batch normalization against finite differences and PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from normscope.curvature.autograd.batch_norm import graph_batch_norm, is_supported
from normscope.layers.standardize import LocalBatch, standardize_by_definition

SHAPES = [(2, 1), (5, 3), (4, 2, 3), (3, 2, 2, 3), (2, 2, 2, 1, 3)]


def leaves(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = (shape, shape[1:2], shape[1:2])
    drawn = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    x, weight, bias = (tensor.requires_grad_() for tensor in drawn)
    return x, weight, bias


def normalized(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 0.3
) -> Tensor:
    return graph_batch_norm(x, weight, bias, eps)[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("eps", [1e-5, 0.7])
def test_graph_batch_norm_has_both_derivatives(shape: tuple[int, ...], eps: float) -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return normalized(x, weight, bias, eps)

    assert torch.autograd.gradcheck(function, leaves(shape), rtol=1e-4)
    assert torch.autograd.gradgradcheck(function, leaves(shape), rtol=1e-4)


@pytest.mark.parametrize("given", ["x", "x, weight", "x, bias", "weight, bias", "weight"])
def test_graph_batch_norm_differentiates_by_any_subset(given: str) -> None:
    x, weight, bias = leaves((4, 3))
    chosen = {"x": x, "weight": weight, "bias": bias}
    names = given.split(", ")
    if "x" not in names:
        chosen["x"] = x.detach()

    def function(*tensors: Tensor) -> Tensor:
        return normalized(**chosen | dict(zip(names, tensors, strict=True)))

    inputs = tuple(chosen[name] for name in names)
    assert torch.autograd.gradcheck(function, inputs)
    if "x" in names:  # else the gradient is constant in what is given, up to the loss
        assert torch.autograd.gradgradcheck(function, inputs)


def test_graph_batch_norm_without_weight_or_bias_has_both_derivatives() -> None:
    x, weight, bias = leaves((4, 2, 3))
    assert torch.autograd.gradgradcheck(normalized, (x,))
    assert torch.autograd.gradgradcheck(lambda x, w: normalized(x, weight=w), (x, weight))
    assert torch.autograd.gradgradcheck(lambda x, b: normalized(x, bias=b), (x, bias))


def test_graph_batch_norm_keeps_its_digits_far_from_zero() -> None:
    """At 200 spreads from zero, near the 250 to which it is used, against float64."""
    generator = torch.Generator().manual_seed(0)
    far = (1e4 + 50 * torch.randn(64, 3, generator=generator)).requires_grad_()
    direction = torch.randn(64, 3, generator=generator)
    exact = far.detach().double().requires_grad_()
    products = []
    for x in (far, exact):
        if x is far:
            y = normalized(x, eps=1e-5)
        else:
            y = standardize_by_definition(x, 1e-5, LocalBatch.of(x))[0]
        (gradient,) = torch.autograd.grad(torch.sin(y).sum(), x, create_graph=True)
        (product,) = torch.autograd.grad(gradient, x, direction.to(x.dtype))
        products.append(product.double())
    # rounding of the output: about 200 times 6e-8
    assert (products[0] - products[1]).norm() < 1e-4 * products[1].norm()


def test_graph_batch_norm_returns_the_statistics_it_used() -> None:
    x, weight, bias = (tensor.detach() for tensor in leaves((6, 3)))
    output, mean, inverse = graph_batch_norm(x, weight, bias, 1e-5)
    expected = torch.nn.functional.batch_norm(x, None, None, weight, bias, True, 0.3, 1e-5)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(mean, x.mean(0))
    torch.testing.assert_close(inverse, (x.var(0, correction=0) + 1e-5).rsqrt())


def test_graph_batch_norm_has_a_third_derivative() -> None:
    def gradient(*tensors: Tensor) -> tuple[Tensor, ...]:
        loss = torch.sin(normalized(*tensors)).sum()
        return torch.autograd.grad(loss, tensors, create_graph=True)

    assert torch.autograd.gradgradcheck(gradient, leaves((4, 2)))


def test_serves_says_no_to_half_precision_and_single_values() -> None:
    assert is_supported(torch.zeros(2, 3))
    assert not is_supported(torch.zeros(1, 3))
    assert not is_supported(torch.zeros(2, 3, dtype=torch.bfloat16))
