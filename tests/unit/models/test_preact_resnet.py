from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from normscope.models import build


def block_size(inputs, outputs, norm):
    projection = inputs * outputs * (inputs != outputs)
    scales_and_shifts = 2 * (inputs + outputs) * norm
    return 9 * inputs * outputs + 9 * outputs * outputs + projection + scales_and_shifts


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_preact_resnet18_has_the_size_of_the_paper(norm):
    normalized = norm == "batch"
    channels = (64, 64, 128, 256, 512)
    expected = 9 * 3 * 64
    for inputs, outputs in pairwise(channels):
        expected += block_size(inputs, outputs, normalized)
        expected += block_size(outputs, outputs, normalized)
    expected += 2 * 512 * normalized + (512 + 1) * 10
    count = sum(p.numel() for p in build("preact_resnet18", norm=norm).parameters())
    assert count == expected
    if normalized:
        # the often used variant without the last normalization has 11,171,146
        assert count == 11_171_146 + 2 * 512


def preactivated(x, state, prefix):
    normalized = functional.batch_norm(
        x, None, None, state[f"{prefix}.weight"], state[f"{prefix}.bias"], training=True
    )
    return normalized.relu()


def reference_block(x, state, prefix, stride, first):
    """One residual unit, written out from the state of the network."""
    activated = preactivated(x, state, f"{prefix}.norm1")
    hidden = functional.conv2d(activated, state[f"{prefix}.conv1.weight"], None, stride, padding=1)
    hidden = preactivated(hidden, state, f"{prefix}.norm2")
    hidden = functional.conv2d(hidden, state[f"{prefix}.conv2.weight"], None, padding=1)
    if f"{prefix}.shortcut.weight" in state:
        x = functional.conv2d(activated, state[f"{prefix}.shortcut.weight"], None, stride)
    elif first:
        x = activated
    return x + hidden


def test_preact_resnet18_computes_the_units_of_the_paper():
    network = build("preact_resnet18", width=0.0625, gamma=0.7).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():  # so that no scale or shift is trivial
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.1 * noise
    state = network.state_dict()
    images = torch.randn(4, 3, 16, 16, generator=generator, dtype=torch.float64)
    x = functional.conv2d(images, state["stem.weight"], None, padding=1)
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            first = stage == block == 0
            x = reference_block(x, state, f"stages.{stage}.{block}", stride, first)
    assert x.shape == (4, 32, 2, 2)
    x = preactivated(x, state, "norm").mean(dim=(2, 3))
    expected = x @ state["head.weight"].T + state["head.bias"]
    torch.testing.assert_close(network(images), expected)


def test_preact_resnet18_projects_only_where_the_size_changes():
    state = build("preact_resnet18", width=0.125).state_dict()
    projections = [name for name in state if "shortcut" in name]
    assert projections == [f"stages.{stage}.0.shortcut.weight" for stage in (1, 2, 3)]


@pytest.mark.parametrize("input_shape", [(1, 8, 8), (1, 28, 28), (3, 5, 9)])
def test_preact_resnet18_takes_images_of_other_sizes(input_shape):
    network = build("preact_resnet18", input_shape=input_shape, width=0.0625, outputs=4)
    assert network(torch.randn(3, *input_shape)).shape == (3, 4)
