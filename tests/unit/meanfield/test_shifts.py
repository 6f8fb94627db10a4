"""Shifts of norm layers as after training: their spread is not a mean of normalized values."""

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.meanfield import convolutional_specification, predict


def padded(seed, activation, head, stride, gammas, betas, spread):
    """Two padded convolutions with BatchNorm, and shifts that differ between channels."""
    torch.manual_seed(seed)
    modules, inputs, size = [], 2, 7
    for channels, gamma, beta in zip((60, 80), gammas, betas, strict=True):
        convolution, norm = nn.Conv2d(inputs, channels, 3, stride, 1), nn.BatchNorm2d(channels)
        nn.init.normal_(convolution.weight, 0, (2 / (9 * inputs)) ** 0.5)
        nn.init.constant_(norm.weight, gamma)
        norm.bias = nn.Parameter(beta + spread * _standardized(channels))
        modules += [convolution, norm, activation()]
        inputs, size = channels, (size - 1) // stride + 1
    modules += [nn.AdaptiveAvgPool2d(1)] if head == "average" else []
    features = inputs if head == "average" else inputs * size**2
    linear = nn.Linear(features, 4)
    nn.init.normal_(linear.weight, 0, (2 / features) ** 0.5)
    return nn.Sequential(*modules, nn.Flatten(), linear).double()


def _standardized(count):
    values = torch.randn(count)
    return (values - values.mean()) / values.std(unbiased=False)


def mean_gradients(model, samples=200):
    """Squared mean gradient of each layer per output, without the bias of finitely many samples."""
    weights = [each for each in model.parameters() if each.ndim > 1]
    batches = [torch.randn(samples, 2, 7, 7, dtype=torch.float64) for _ in range(2)]
    means = [model(x).mean(0) for x in batches]
    total = np.zeros(len(weights))
    for output in range(4):
        first, second = (
            torch.autograd.grad(each[output], weights, retain_graph=True) for each in means
        )
        total += [float((a * b).sum()) for a, b in zip(first, second, strict=True)]
    return total / 4


@pytest.mark.parametrize(
    "settings",
    [
        (nn.ReLU, "flatten", 2, (1.0, 1.0), (0.3, -0.3), 1.0),
        (nn.LeakyReLU, "average", 2, (0.24, 1.98), (4.5, -0.4), 1.0),
    ],
    ids=["flatten", "average"],
)
def test_terms_of_padded_maps_with_shifts_are_those_of_networks(settings):
    """The layer below the head once had terms of -33 and -329; measured 38 and 35."""
    models = [padded(seed, *settings) for seed in range(8)]
    found = np.mean([mean_gradients(model) for model in models], axis=0)
    rows = [predict(model, (2, 7, 7), batch_size=200).layers for model in models]
    terms = np.mean([[row.term for row in each] for each in rows], axis=0)
    assert terms[1:] == pytest.approx(found[1:], rel=0.1)
    assert terms[0] < 0.01 * terms[1] > found[0]


@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_spread_of_shifts_leaves_the_head_alone(spread):
    """Of a vector, BatchNorm removes the mean gradient whatever the shifts are."""
    torch.manual_seed(0)
    modules, inputs = [], 50
    for _ in range(3):
        norm = nn.BatchNorm1d(200)
        norm.bias = nn.Parameter(spread * torch.randn(200))
        modules += [nn.Linear(inputs, 200), norm, nn.ReLU()]
        inputs = 200
    model = nn.Sequential(*modules, nn.Linear(200, 10)).double()
    found = predict(model)
    assert [row.term for row in found.layers[:-1]] == pytest.approx([0, 0, 0], abs=1e-12)
    x = torch.randn(256, 50, dtype=torch.float64)
    names = [name for name, each in model.named_parameters() if each.ndim > 1]
    data = (x, torch.zeros(256, 10, dtype=torch.float64))
    top = ns.curvature.top_eigenvalue(model, "squared_error", data, "fisher", params=names)
    assert found.lambda_max == pytest.approx(top.value, rel=0.1)


@pytest.mark.parametrize("activation", ["silu", "tanh"])
def test_value_of_a_sweep_does_not_depend_on_the_others(activation):
    """Activations that a scale changes, on a padded map."""
    graph = convolutional_specification(
        (2, 9, 9), (8, 12), padding=1, activation=activation, beta=0.5
    )
    gammas = [0.2, 1.0, 2.5]
    swept = predict(graph, gamma=gammas).lambda_max
    alone = [predict(graph, gamma=gamma).lambda_max for gamma in gammas]
    assert swept == pytest.approx(alone, rel=1e-12)
