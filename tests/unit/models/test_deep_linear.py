import pytest
import torch
from torch import nn

from normscope.models import build


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_deep_linear_has_the_size_of_the_paper(norm):
    network = build("deep_linear", norm=norm)
    matrices = 25 * 10 * 10
    scales_and_shifts = 24 * 2 * 10
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == matrices + scales_and_shifts * (norm == "batch")


def test_deep_linear_is_the_product_of_its_matrices():
    network = build("deep_linear", norm="none").double()
    product = torch.eye(10, dtype=torch.float64)
    linear_layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    for layer in linear_layers:
        product = layer.weight @ product
    x = torch.randn(7, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert len(linear_layers) == 25
    torch.testing.assert_close(network(x), x @ product.T)


def test_deep_linear_output_is_normalized_only_if_asked():
    x = torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    free = build("deep_linear", depth=4)(x)
    normalized = build("deep_linear", depth=4, normalize_output=True)(x)
    assert (free.var(dim=0, unbiased=False) - 1).abs().max() > 0.1
    torch.testing.assert_close(normalized.mean(dim=0), torch.zeros(10), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        normalized.var(dim=0, unbiased=False), torch.ones(10), atol=1e-3, rtol=0
    )


def test_deep_linear_takes_other_sizes():
    network = build("deep_linear", input_shape=(1, 4, 4), outputs=3, depth=2, width=5)
    assert network(torch.randn(6, 1, 4, 4)).shape == (6, 3)
    shapes = [m.weight.shape for m in network.modules() if isinstance(m, nn.Linear)]
    assert shapes == [(5, 16), (3, 5)]
