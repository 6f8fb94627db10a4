"""Variances of single channels scatter: frozen statistics of few values raise the gradients."""

import math

import numpy as np
import pytest
import torch
from tests.unit.meanfield.test_shifts import mean_gradients, padded
from torch import nn

from normscope.meanfield import fully_connected_specification, predict


class FrozenNorm(nn.Module):
    """BatchNorm whose statistics are those of the batch, as constants."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        axes = [axis for axis in range(x.dim()) if axis != 1]
        mean = x.mean(axes, keepdim=True).detach()
        variance = x.var(axes, unbiased=False, keepdim=True).detach() + self.norm.eps
        scale, shift = (p.view(-1, *[1] * (x.dim() - 2)) for p in self.norm.parameters())
        return (x - mean) / variance.sqrt() * scale + shift


def frozen(model):
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)
    return nn.Sequential(*(FrozenNorm(m) if isinstance(m, kinds) else m for m in model))


def linear_net(seed):
    torch.manual_seed(seed)
    modules = [nn.Linear(600, 600)]
    for outputs in (600, 600, 4):
        modules += [nn.BatchNorm1d(600), nn.ReLU(), nn.Linear(600, outputs)]
    return nn.Sequential(*modules)


def small_maps(seed):
    """Maps of 2 x 2 positions."""
    torch.manual_seed(seed)
    modules, inputs = [], 8
    for _ in range(4):
        modules += [nn.Conv2d(inputs, 200, 3, padding=1), nn.BatchNorm2d(200), nn.ReLU()]
        inputs = 200
    return nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(200, 4))


def squared_gradients(model, x):
    """Mean over samples and outputs of the squared gradient at the output of each layer."""
    layers, outputs = [m for m in model if isinstance(m, nn.Conv2d | nn.Linear)], []
    for layer in layers:
        layer.register_forward_hook(lambda _, inputs, output: outputs.append(output))
    found = model(x)
    total = np.zeros(len(layers))
    for output in range(4):
        parts = torch.autograd.grad(found[:, output].sum(), outputs, retain_graph=True)
        total += [float(part.square().flatten(1).sum(1).mean()) / 4 for part in parts]
    return total


@pytest.mark.parametrize(
    ("make", "shape"),
    [(linear_net, (16, 600)), (small_maps, (16, 8, 2, 2)), (small_maps, (128, 8, 2, 2))],
    ids=["vectors", "maps", "maps, larger batch"],
)
def test_squared_gradients_below_frozen_statistics_are_those_of_networks(make, shape):
    """Without the scatter they were 0.75 (maps) to 0.6 (vectors) of the simulated ones."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = np.mean([squared_gradients(frozen(make(seed)), x) for seed in range(4)], axis=0)
    rows = predict(make(0), shape[1:], closure="frozen", data=x).layers
    # the first layer, whose inputs are not normalized, has the biased variance in addition
    assert [row.gradient for row in rows[1:]] == pytest.approx(found[1:].tolist(), rel=0.08)


def test_mean_gradients_of_few_positions_below_frozen_statistics():
    """Means of positions far apart scatter much; without that the term was a third of this."""
    settings = (nn.LeakyReLU, "average", 2, (0.24, 1.98), (4.5, -0.4), 1.0)
    models = [padded(seed, *settings) for seed in range(16)]
    found = np.mean([mean_gradients(frozen(model)) for model in models], axis=0)
    rows = [predict(m, (2, 7, 7), closure="frozen", batch_size=200).layers for m in models]
    terms = np.mean([[row.term for row in each] for each in rows], axis=0)
    assert terms[1:] == pytest.approx(found[1:], rel=0.25)


@pytest.mark.parametrize("size", [8, 64, 256])
def test_growth_of_vectors_is_that_of_an_inverse_variance(size):
    net = fully_connected_specification((200, *[300] * 11, 10), bias_variance=0.0)
    rows = predict(net, closure="frozen", batch_size=size).layers
    rate = math.pi / (math.pi - 1) * (size - 1) / (size - 3)
    assert [row.growth for row in rows[1:-1]] == pytest.approx([rate] * 10, rel=1e-8)


def test_mean_square_is_infinite_in_batches_of_three():
    net = fully_connected_specification()
    assert predict(net, closure="frozen", batch_size=3).lambda_max is None
    assert predict(net, closure="frozen", batch_size=4).lambda_max is not None
