import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.models import build

# The columns A and D of simonyan2014, Table 1, written as one row; M is a max-pooling.
PLANS = {
    "vgg": "64 M 128 M 256 256 M 512 512 M 512 512 M",
    "vgg16": "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M",
}


def convolution_channels(name):
    return [int(entry) for entry in PLANS[name].split() if entry != "M"]


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("name", PLANS)
def test_vgg_has_the_size_of_its_configuration(name, norm):
    outputs = convolution_channels(name)
    inputs = [3, *outputs[:-1]]
    expected = sum((9 * i + 1) * o for i, o in zip(inputs, outputs, strict=True))
    expected += (512 + 1) * 10 + (2 * (512 + 1) * 512 if name == "vgg" else 0)
    expected += 2 * sum(outputs) * (norm == "batch")
    count = sum(parameter.numel() for parameter in build(name, norm=norm).parameters())
    assert count == expected


@pytest.mark.parametrize("name", PLANS)
def test_vgg_layers_follow_the_plan(name):
    expected = []
    for entry in PLANS[name].split():
        expected += ["MaxPool2d"] if entry == "M" else ["Conv2d", "GroupNorm", "ReLU"]
    network = build(name, norm="layer", width=0.125)
    assert [type(module).__name__ for module in network.features] == expected
    channels = [m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert channels == [entry // 8 for entry in convolution_channels(name)]


@pytest.mark.parametrize("name", PLANS)
def test_vgg_computes_the_chain_of_its_weights(name):
    network = build(name, norm="none", width=0.125).double()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=generator)
    layers = iter(m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    hidden = images
    for entry in PLANS[name].split():
        if entry == "M":
            hidden = functional.max_pool2d(hidden, 2)
        else:
            layer = next(layers)
            hidden = functional.conv2d(hidden, layer.weight, layer.bias, padding=1).relu()
    *classifier, head = layers
    hidden = hidden.flatten(1)
    for layer in classifier:
        hidden = (hidden @ layer.weight.T + layer.bias).relu()
    torch.testing.assert_close(network(images), hidden @ head.weight.T + head.bias)


def test_vgg_width_rounds_and_keeps_one_channel():
    network = build("vgg", width=0.001)
    assert {m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d)} == {1}
    assert build("vgg", width=0.3).features[0].out_channels == 19  # 19.2


@pytest.mark.parametrize(
    ("input_shape", "positions"), [((1, 8, 8), 1), ((1, 28, 28), 1), ((3, 33, 65), 2 * 3)]
)
@pytest.mark.parametrize("name", PLANS)
def test_vgg_takes_images_of_other_sizes(name, input_shape, positions):
    network = build(name, input_shape=input_shape, width=0.0625, outputs=4)
    first = network.classifier[0] if name == "vgg" else network.head
    assert first.in_features == 32 * positions
    assert network(torch.randn(3, *input_shape)).shape == (3, 4)
