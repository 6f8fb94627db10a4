"""The fast second derivative of a convolution against finite differences and PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.curvature.autograd.convolution import graph_convolution

CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
GEOMETRIES: list[dict[str, Any]] = [
    {},
    {"stride": 2},
    {"padding": 1},
    {"dilation": 2},
    {"groups": 2},
    {"stride": 2, "padding": 1, "dilation": 2, "groups": 2},
]


def leaves(dimensions: int, groups: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(dimensions)
    sizes = ((2, 2, *[5] * dimensions), (4, 2 // groups, *[2] * dimensions), (4,))
    drawn = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    x, weight, bias = (tensor.requires_grad_() for tensor in drawn)
    return x, weight, bias


def convolved(dimensions: int, *tensors: Tensor | None, **geometry: Any) -> Tensor:
    output = graph_convolution(dimensions, *tensors, **geometry)  # type: ignore[arg-type]
    assert output is not None
    return output


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("function", CONVOLUTIONS)
def test_graph_convolution_equals_torch_in_value_and_both_derivatives(
    function: Any, geometry: dict[str, Any]
) -> None:
    dimensions = CONVOLUTIONS[function]
    tensors = leaves(dimensions, geometry.get("groups", 1))
    generator = torch.Generator().manual_seed(7)
    results = []
    for convolution in (function, lambda *t, **g: convolved(dimensions, *t, **g)):
        output = convolution(*tensors, **geometry)
        gradients = torch.autograd.grad(torch.sin(output).sum(), tensors, create_graph=True)
        generator.manual_seed(7)
        directions = [
            torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in tensors
        ]
        products = torch.autograd.grad(gradients, tensors, directions)
        results.append((output, gradients, products))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_graph_convolution_passes_gradgradcheck(geometry: dict[str, Any]) -> None:
    tensors = leaves(1, geometry.get("groups", 1))
    assert torch.autograd.gradgradcheck(lambda *t: convolved(1, *t, **geometry), tensors)


@pytest.mark.parametrize("fixed", [{0}, {1}, {2}, {0, 2}, {1, 2}, {0, 1}])
def test_graph_convolution_differentiates_by_any_subset(fixed: set[int]) -> None:
    tensors = [t.detach() if i in fixed else t for i, t in enumerate(leaves(2))]
    free = tuple(t for t in tensors if t.requires_grad)

    def function(*given: Tensor) -> Tensor:
        queue = list(given)
        full = [queue.pop(0) if t.requires_grad else t for t in tensors]
        return convolved(2, *full, stride=2)

    assert torch.autograd.gradcheck(function, free)
    assert torch.autograd.gradgradcheck(lambda *t: torch.sin(function(*t)), free)


def test_graph_convolution_leaves_to_torch_what_it_does_not_take() -> None:
    x, weight, _ = leaves(1)
    assert graph_convolution(1, x[0], weight) is None
    assert graph_convolution(1, x, weight, padding="same") is None


def test_graph_convolution_has_a_third_derivative() -> None:
    def gradient(*tensors: Tensor) -> tuple[Tensor, ...]:
        loss = torch.sin(convolved(1, *tensors, stride=2)).sum()
        return torch.autograd.grad(loss, tensors, create_graph=True)

    assert torch.autograd.gradgradcheck(gradient, leaves(1))
