from dataclasses import replace

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from normscope.curvature import dense, operator
from normscope.learning_rate.bound import preconditioned_eigenvalue
from normscope.learning_rate.update_rule import Preconditioner, preconditioner_of, rule_of
from normscope.problem.parameters import parameter_layout


def made(model, optimizer, gradients):
    parameters = dict(model.named_parameters())
    return preconditioner_of(
        optimizer, rule_of(optimizer), parameters, parameter_layout(model), gradients
    )


def test_sgd_divides_by_nothing():
    model = small_network()
    assert made(model, SGD(model.parameters(), lr=0.1), []) is None


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_divisor_of_a_stepped_optimizer_is_that_of_its_state(kind):
    model, (inputs, targets) = small_network(), labelled()
    optimizer = kind(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    found = made(model, optimizer, [])
    state = optimizer.state[model[3].weight]
    moment = state["exp_avg_sq"] / (1 - 0.999**3) if kind is Adam else state["square_avg"]
    place = parameter_layout(model).slices["3.weight"]
    assert found.is_given
    assert torch.allclose(found.scale[place], moment.sqrt().flatten() + 1e-8)


def test_divisor_of_amsgrad_is_the_largest_mean_so_far():
    model, (inputs, targets) = small_network(), labelled()
    optimizer = Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.5), amsgrad=True)
    for factor in (5.0, 1.0, 1.0):
        optimizer.zero_grad()
        (factor * nn.functional.cross_entropy(model(inputs), targets)).backward()
        optimizer.step()
    state = optimizer.state[model[3].weight]
    assert (state["max_exp_avg_sq"] > 1.5 * state["exp_avg_sq"]).any()
    place = parameter_layout(model).slices["3.weight"]
    expected = (state["max_exp_avg_sq"] / (1 - 0.5**3)).sqrt().flatten() + 1e-8
    assert torch.allclose(made(model, optimizer, []).scale[place], expected)


def test_divisor_of_a_centered_rmsprop_is_the_deviation():
    model = small_network()
    optimizer = RMSprop(model.parameters(), lr=1e-3, alpha=0.5, centered=True)
    for gradient in (2.0, 1.0):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()
    # means of 0, 0, 2, 1 with weights that halve: 1 of the gradient, 1.5 of its square
    assert torch.allclose(made(model, optimizer, []).scale, torch.tensor(0.5**0.5))


def test_deviation_below_zero_by_rounding_is_none():
    model = small_network()
    optimizer = RMSprop(model.parameters(), lr=1e-3, centered=True)
    for parameter in model.parameters():
        mean = torch.full_like(parameter, 1.0)
        optimizer.state[parameter] = {"square_avg": 1.25 * mean, "grad_avg": mean}
    rounded = optimizer.state[model[3].weight]
    rounded["square_avg"] = torch.ones_like(rounded["grad_avg"]) - 1e-7
    found = made(model, optimizer, []).scale
    place = parameter_layout(model).slices["3.weight"]
    assert torch.allclose(found[place], torch.tensor(0.5e-6))  # the floor, and no root of -1e-7
    assert torch.allclose(found[place.stop :], torch.tensor(0.5))


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_decay_of_each_group_is_divided_like_the_gradient(kind):
    model = small_network().double()
    layout = parameter_layout(model)
    groups = [
        {"params": [model[0].weight], "weight_decay": 50.0},
        {"params": [each for each in model.parameters() if each is not model[0].weight]},
    ]
    gradient = torch.zeros(layout.size, dtype=torch.float64)
    gradient[5:] = 3.0  # of the first five the loss knows nothing
    found = made(model, kind(groups, eps=1e-8), [gradient])
    place = layout.slices["0.weight"]
    whole = gradient[place] + 50 * model[0].weight.detach().flatten()
    assert torch.allclose(found.scale[place], whole.abs() + 1e-8)
    assert torch.equal(
        found.decay[place], torch.tensor([0.0] * 5 + [50.0] * 35, dtype=torch.float64)
    )
    assert found.decay.count_nonzero() == 35
    matrix = dense(model, "cross_entropy", labelled(), kind="ggn", mode="train")
    given = operator(model, "cross_entropy", labelled(), kind="ggn")
    root = found.scale.sqrt()
    exact = torch.linalg.eigvalsh((matrix + found.decay.diag()) / root / root.unsqueeze(1)).amax()
    value = preconditioned_eigenvalue(given, found, 1e-6)[0]
    assert value == pytest.approx(float(exact), rel=1e-5)
    bare = preconditioned_eigenvalue(given, replace(found, decay=None), 1e-6)[0]
    assert bare < 0.99 * value


def test_decoupled_and_absent_decay_divide_nothing():
    model = small_network()
    gradients = [torch.ones(parameter_layout(model).size)]
    for optimizer in (AdamW(model.parameters()), Adam(model.parameters())):
        assert made(model, optimizer, gradients).decay is None


def test_divisor_without_state_is_estimated_from_gradients():
    model = small_network()
    size = parameter_layout(model).size
    found = made(
        model, Adam(model.parameters()), [torch.full((size,), 3.0), torch.full((size,), 4.0)]
    )
    assert not found.is_given
    assert torch.allclose(found.scale, torch.full((size,), 12.5**0.5))


def test_eigenvalue_is_that_of_the_scaled_dense_matrix():
    model, batch = small_network().double(), labelled()
    matrix = dense(model, "cross_entropy", batch, kind="ggn", mode="train")
    scale = torch.rand(len(matrix), generator=torch.Generator().manual_seed(0)).double() + 0.1
    value, _, products = preconditioned_eigenvalue(
        operator(model, "cross_entropy", batch, kind="ggn"), Preconditioner(scale, True), 1e-6
    )
    root = scale.sqrt()
    exact = torch.linalg.eigvalsh(matrix / root / root.unsqueeze(1)).amax()
    assert value == pytest.approx(float(exact), rel=1e-5)
    assert products > 0
