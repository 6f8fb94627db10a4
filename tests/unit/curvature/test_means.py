"""Mean gradients on a part of the data, against the dense matrix."""

import pytest
import torch
from tests.references.curvature import Reference
from tests.unit.curvature.networks import batch, network
from torch import nn
from torch.nn import functional

from normscope.curvature.means import agreement, gradient_model, output_model, top_means
from normscope.curvature.operator import CurvatureOperator
from normscope.curvature.spaces import OutputSpace, search_space
from normscope.problem import Evaluator, Problem, parameter_layout


def space_of(model, data, kind="fisher", mode="train"):
    layout = parameter_layout(model)
    evaluator = Evaluator(Problem(model, functional.cross_entropy, data), layout, mode, 0)
    space = search_space(CurvatureOperator(evaluator, kind), "largest", 1)
    assert isinstance(space, OutputSpace)
    return space


def dense_of(space):
    return torch.stack([space.times(row) for row in torch.eye(space.size, dtype=space.dtype)])


@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
@pytest.mark.parametrize("kind", ["fisher", "ggn"])
@pytest.mark.parametrize("name", ["torch_batch", "conv2d", "tied", "residual"])
def test_mean_model_is_the_matrix_between_vectors_the_same_for_all_samples(name, kind, mode):
    model, data = network(name), batch(name)
    space = space_of(model, data, kind, mode)
    samples, outputs = len(data[1]), space.size // len(data[1])
    means = output_model(space, 100)
    same = torch.eye(outputs, dtype=torch.float64).repeat(samples, 1) / samples**0.5
    expected = same.T @ dense_of(space) @ same
    assert torch.allclose(means.matrix, expected, rtol=1e-8, atol=1e-10)
    assert means.frame.samples == 100
    top = top_means(means, space, 1)[:, 0]
    largest = float(torch.linalg.eigvalsh(expected)[-1])
    assert float(top @ space.times(top.contiguous())) == pytest.approx(largest, rel=1e-8)


def test_mean_fisher_is_that_of_the_mean_gradients():
    model, data = network("conv2d"), batch("conv2d")
    jacobian = Reference(model, functional.cross_entropy, data, "train").jacobian
    by_output = jacobian.view(len(data[1]), -1, jacobian.shape[1]).mean(0)
    expected = by_output @ by_output.T  # wei2018: what bounds the largest eigenvalue
    assert torch.allclose(output_model(space_of(model, data), 9).matrix, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["fisher", "ggn"])
@pytest.mark.parametrize("name", ["conv2d", "residual"])
def test_gradient_model_has_an_orthonormal_frame_of_mean_gradients(name, kind):
    model, data = network(name), batch(name)
    space = space_of(model, data, kind)
    means = output_model(space, 9)
    gradients = gradient_model(means, space, 0.125)
    assert gradients.frame.cost == pytest.approx(3 / 16)  # three halves of an eighth
    size = sum(parameter.numel() for parameter in model.parameters())
    like = torch.empty(0, dtype=torch.float64)
    count = len(gradients.matrix)
    columns = [gradients.frame.vector(row, like) for row in torch.eye(count, dtype=torch.float64)]
    frame = torch.stack(columns, 1)
    assert frame.shape == (size, count)
    assert torch.allclose(frame.T @ frame, torch.eye(count, dtype=torch.float64), atol=1e-8)
    drawn = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(gradients.frame.means(drawn), frame.T @ drawn, rtol=1e-8, atol=1e-10)
    # the same eigenvalues, but for those that are as good as zero
    expected = torch.linalg.eigvalsh(means.matrix)[-count:]
    assert torch.allclose(gradients.matrix.diagonal(), expected)


def test_gradient_model_leaves_out_directions_without_a_gradient_and_no_others():
    model, data = network("conv2d"), batch("conv2d")
    space = space_of(model, data)
    for smallest, kept in ((1e-2, 3), (1e-4, 2)):
        matrix = torch.diag(torch.tensor([smallest, 0.5, 1.0], dtype=torch.float64))
        means = output_model(space, 9)
        means.matrix = matrix
        assert len(gradient_model(means, space, 0.1).matrix) == kept


def net(activation, norm):
    torch.manual_seed(0)
    layers = [nn.Linear(20, 100), *norm, activation, nn.Linear(100, 100), *norm[:0], activation]
    return nn.Sequential(*layers, nn.Linear(100, 3))


def test_agreement_is_high_where_units_have_a_mean_and_low_where_they_have_none():
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(64, 20, generator=generator), torch.randint(3, (64,), generator=generator)
    # squares have a mean whatever the sample; a centred odd function has none
    assert agreement(space_of(net(nn.ReLU(), []), data), seed=0) > 0.8
    odd = net(nn.Tanh(), [])
    for layer in odd:
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
            layer.bias.requires_grad_(False)
    assert agreement(space_of(odd, data), seed=0) < 0.5


def test_agreement_of_a_net_without_gradients_is_none():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
    nn.init.zeros_(model[0].weight)
    nn.init.constant_(model[0].bias, -1.0)  # every unit is off
    data = torch.randn(3, 4), torch.tensor([0, 1, 0])
    assert agreement(space_of(model, data), seed=0) == 0.0
