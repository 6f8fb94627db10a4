"""Which modules get fast second derivatives, and that the model has its own back afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.curvature import operator
from normscope.curvature.state import undisturbed
from normscope.curvature.twice import differentiate_twice_fast
from normscope.layers import BatchNorm1d, BatchNorm2d


def graph_nodes(output: Tensor) -> set[str]:
    names, waiting = set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node.name() not in names:
            names.add(node.name())
            waiting += [following for following, _ in node.next_functions]
    return names


def replaced(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    expected = layer(x)
    with undisturbed(layer):
        differentiate_twice_fast(layer, batch_statistics=True)
        return layer(x), expected


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(3), BatchNorm1d(3), nn.BatchNorm1d(3, affine=False)], ids=repr
)
def test_batch_norm_layers_are_replaced(layer: nn.Module) -> None:
    output, expected = replaced(layer, torch.randn(6, 3, requires_grad=True))
    torch.testing.assert_close(output, expected)
    assert "_NormalizeBackward" in graph_nodes(output)
    assert not any("NativeBatchNorm" in node for node in graph_nodes(output))


class OwnBatchNorm(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_a_layer_with_its_own_forward_keeps_it() -> None:
    output, expected = replaced(OwnBatchNorm(3), torch.randn(6, 3))
    assert torch.equal(output, expected)
    assert "_NormalizeBackward" not in graph_nodes(output)


def test_a_layer_far_from_zero_keeps_its_own_remedy() -> None:
    x = 1e4 + 1e-2 * torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    output, expected = replaced(BatchNorm1d(3), x)
    assert torch.equal(output, expected)


@pytest.mark.parametrize(
    ("options", "fast"),
    [
        ({}, True),
        ({"padding": 1, "stride": 2}, True),
        ({"padding": "same"}, False),
        ({"padding": 1, "padding_mode": "circular"}, False),
    ],
)
def test_convolutions_are_replaced_where_they_can_be(options: dict[str, Any], fast: bool) -> None:
    layer = nn.Conv2d(2, 3, 3, **options)
    output, expected = replaced(layer, torch.randn(2, 2, 5, 5))
    torch.testing.assert_close(output, expected)
    assert ("_ConvolveBackward" in graph_nodes(output)) == fast


def test_hessian_of_a_convolutional_net_equals_the_double_backward_of_torch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2),
        BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 4, 2, groups=1, padding=1),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(3),
    ).double()
    x, y = torch.randn(6, 2, 7, 7, dtype=torch.float64), torch.randint(3, (6,))
    loss = nn.functional.cross_entropy
    parameters = [p for p in model.parameters() if loss(model(x), y).requires_grad]
    matrix = operator(model, loss, (x, y), kind="hessian")
    vector = torch.randn(matrix.shape[0], dtype=torch.float64)
    gradients = torch.autograd.grad(loss(model(x), y), parameters, create_graph=True)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    products = torch.autograd.grad(flat, parameters, vector)
    expected = torch.cat([product.flatten() for product in products])
    torch.testing.assert_close(matrix @ vector, expected, rtol=1e-9, atol=1e-10)
    assert not any("forward" in m.__dict__ or "_conv_forward" in m.__dict__ for m in model)
