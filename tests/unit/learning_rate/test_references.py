"""Losses, attributes and hooks that refer to the model or to its parameters."""

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, quadratic, small_network
from torch import nn

from normscope import max_learning_rate
from normscope.problem.loss import squared_error

PENALTY = 50.0


def penalized(model):
    """The squared error with an L2 penalty on the model's parameters: curvature 4 + 2 * 50."""

    def loss(output, target):
        squares = sum(parameter.square().sum() for parameter in model.parameters())
        return squared_error(output, target) + PENALTY * squares

    return loss


def test_penalty_on_the_models_parameters_counts_in_the_verified_limit():
    problem = quadratic()
    found = max_learning_rate(problem.model, penalized(problem.model), problem.data)
    exact = 2 / (4 + 2 * PENALTY)
    assert found.verification.low < exact * 1.05
    assert found.limit == pytest.approx(exact, rel=0.1)
    assert found.curvature_bound <= exact * 1.05


class Head(nn.Module):
    """A network whose last layer is called by an attribute."""

    def __init__(self, kind="plain"):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        kinds = {"closure": lambda x: self.last(x), "method": self.own, "layer": self.last.forward}
        self.head = kinds.get(kind)

    def own(self, x):
        return self.last(x)

    def forward(self, x):
        return (self.head or self.own)(self.first(x).relu())


@pytest.mark.parametrize("kind", ["closure", "method", "layer"])
def test_attribute_that_calls_the_model_does_not_change_the_limit(kind):
    model = Head(kind)
    found = max_learning_rate(model, "cross_entropy", labelled())
    expected = max_learning_rate(Head(), "cross_entropy", labelled())
    assert found.verification.all_runs == expected.verification.all_runs
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_of_another_model_are_left_alone():
    others = [Head("closure")]  # in a list: nothing tells that the loss uses a module

    def loss(output, target):
        return nn.functional.cross_entropy(output + others[0](torch.ones(1, 5)), target)

    found = max_learning_rate(Head(), loss, labelled())
    assert found.verification.high < float("inf")
    assert all(parameter.grad is None for parameter in others[0].parameters())


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_gradient_hooks_on_parameters_act_in_short_runs(factor):
    model, calls = small_network(), []
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: calls.append(1) or factor * gradient)
    found = max_learning_rate(model, "cross_entropy", labelled())
    plain = max_learning_rate(small_network(), "cross_entropy", labelled())
    assert calls
    assert found.limit * factor == pytest.approx(plain.limit, rel=0.06)
