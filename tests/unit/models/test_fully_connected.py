import pytest
import torch
from torch import nn

from normscope.errors import InputError, UnknownNameError
from normscope.models import build


def parameter_count(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_fully_connected_has_the_size_of_the_paper(norm):
    network = build("fully_connected", norm=norm)
    linear_layers = (784 + 1) * 1000 + 2 * (1000 + 1) * 1000 + (1000 + 1) * 10
    scales_and_shifts = 3 * 2 * 1000
    assert parameter_count(network) == linear_layers + scales_and_shifts * (norm == "batch")


def test_fully_connected_normalizes_all_layers_but_the_last():
    network = build("fully_connected", norm="layer", depth=3, width=6, input_shape=(4,))
    kinds = [nn.Linear, nn.LayerNorm, nn.ReLU]
    assert [type(module) for module in network.features] == 2 * kinds
    assert [name for name, _ in network.named_children()] == ["flatten", "features", "head"]
    assert isinstance(network.head, nn.Linear)


def test_fully_connected_computes_the_chain_of_its_weights():
    network = build("fully_connected", norm="none", activation="tanh", width=9, input_shape=(2, 3))
    images = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0))
    hidden = images.reshape(5, 6)
    for layer in network.features[::3]:
        hidden = torch.tanh(hidden @ layer.weight.T + layer.bias)
    expected = hidden @ network.head.weight.T + network.head.bias
    torch.testing.assert_close(network(images), expected)


def test_fully_connected_takes_vectors_and_images_alike():
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    by_image = build("fully_connected", input_shape=(1, 8, 8), width=12)
    by_vector = build("fully_connected", input_shape=(64,), width=12)
    assert torch.equal(by_image(images), by_vector(images.flatten(1)))


def test_fully_connected_of_depth_one_is_a_linear_map():
    network = build("fully_connected", depth=1, input_shape=(4,), outputs=3, bias=False)
    assert [parameter.shape for parameter in network.parameters()] == [(3, 4)]


@pytest.mark.parametrize("options", [{"depth": 0}, {"width": -3}])
def test_fully_connected_refuses_sizes_below_one(options):
    with pytest.raises(InputError, match="must be at least 1"):
        build("fully_connected", **options)


def test_fully_connected_lists_the_activations():
    with pytest.raises(UnknownNameError, match="gelu, linear, relu, sigmoid, tanh"):
        build("fully_connected", activation="rellu")


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
