import pytest
import torch
from torch.nn import functional

from normscope.errors import InputError, ShapeError
from normscope.models import build


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_conv_net_has_the_size_of_the_paper(norm):
    network = build("conv_net", norm=norm)
    channels = (3, 30, 60, 90)
    convolutions = sum((9 * channels[i] + 1) * channels[i + 1] for i in range(3))
    head = (90 * 3 * 3 + 1) * 10  # 32 -> 15 -> 7 -> 3
    scales_and_shifts = 2 * (30 + 60 + 90)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == convolutions + head + scales_and_shifts * (norm == "batch")


def test_conv_net_computes_the_chain_of_its_weights():
    network = build("conv_net", norm="none", channels=(4, 5), input_shape=(2, 13, 11), kernel=3)
    images = torch.randn(3, 2, 13, 11, generator=torch.Generator().manual_seed(0))
    hidden = images
    for layer in (network.features[0], network.features[3]):
        hidden = functional.conv2d(hidden, layer.weight, layer.bias, stride=2).relu()
    head = network.head
    torch.testing.assert_close(network(images), hidden.flatten(1) @ head.weight.T + head.bias)


def test_conv_net_names_the_remedy_for_small_images():
    with pytest.raises(ShapeError, match=r"\(8, 8\).*padding=0; use larger images or padding=1"):
        build("conv_net", input_shape=(1, 8, 8))
    network = build("conv_net", input_shape=(1, 8, 8), padding=1)
    assert network(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_conv_net_needs_images_of_fifteen():
    assert build("conv_net", input_shape=(1, 15, 15)).head.in_features == 90
    with pytest.raises(ShapeError, match="padding=1"):
        build("conv_net", input_shape=(1, 15, 14))


def test_conv_net_does_not_advise_padding_that_is_there():
    with pytest.raises(ShapeError, match="fewer channels"):
        build("conv_net", input_shape=(1, 2, 2), kernel=4, padding=1, stride=3)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"stride": 0}, "stride must be at least 1"),
        ({"kernel": 0}, "kernel must be at least 1"),
        ({"channels": (4, 0)}, "channels must be at least 1"),
        ({"padding": -1}, "padding must be at least 0"),
    ],
)
def test_conv_net_refuses_sizes_that_cannot_be(options, match):
    with pytest.raises(InputError, match=match):
        build("conv_net", **options)
