import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network
from torch import nn
from torch.optim import SGD, Adam, RMSprop

from normscope.curvature import dense, operator
from normscope.curvature.layout import parameter_layout
from normscope.learning_rate.preconditioner import (
    Preconditioner,
    preconditioned_eigenvalue,
    preconditioner_of,
)
from normscope.learning_rate.rules import rule_of


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
    found = preconditioned_eigenvalue(
        operator(model, "cross_entropy", batch, kind="ggn"), Preconditioner(scale, True), 1e-6
    )
    root = scale.sqrt()
    exact = torch.linalg.eigvalsh(matrix / root / root.unsqueeze(1)).amax()
    assert found.value == pytest.approx(float(exact), rel=1e-5)
    assert found.products > 0
