import copy
import itertools
import math

import pytest
import torch
from tests.unit.learning_rate.problems import labelled
from torch import nn

from normscope.learning_rate import prediction
from normscope.learning_rate.last_layer import LastLayer, last_layer
from normscope.learning_rate.last_layer_training import last_layer_limit
from normscope.learning_rate.prediction import limit_after_one_step
from normscope.learning_rate.update_rule import UpdateRule, rule_of
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem

SGD = UpdateRule("SGD")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def problem_of(model):
    return Problem(model, "cross_entropy", [labelled()])


def limit_after(model, rate, rule=SGD):
    evaluator = Evaluator(problem_of(model), parameter_layout(model), "train", 0)
    layer = last_layer(evaluator)
    assert layer is not None
    return limit_after_one_step(evaluator, labelled(), layer, rule, None, rate)


@pytest.fixture
def moved_parameters(monkeypatch):
    """The parameters that each step moved, by name."""
    real, found = prediction.last_layer, []

    def noting(evaluator, moved):
        found.append(moved)
        return real(evaluator, moved)

    monkeypatch.setattr(prediction, "last_layer", noting)
    return found


def limit_by_plain_torch(model, problem, rate):
    """The same by a step of a copy."""
    moved, (inputs, targets) = copy.deepcopy(model), labelled()
    nn.functional.cross_entropy(moved(inputs), targets).backward()
    with torch.no_grad():
        for parameter in moved[0].parameters():
            parameter -= rate * parameter.grad
        features = moved[:2](inputs)
    weight, bias = model[2].weight.detach(), model[2].bias.detach()
    return last_layer_limit(LastLayer("2", weight, bias, (features,), (targets,)), problem, SGD)


@pytest.mark.parametrize("rate", [0.1, 3.0, 30.0])
def test_limit_after_a_step_is_that_of_a_copy_that_took_it(rate):
    model = network()
    expected = limit_by_plain_torch(model, problem_of(model), rate)
    assert limit_after(model, rate) == pytest.approx(expected)


@pytest.mark.parametrize("nesterov", [False, True])
def test_step_is_the_first_of_torch(nesterov, moved_parameters):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=nesterov)
    limit_after(model, 0.3, rule_of(optimizer))
    inputs, targets = labelled()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    torch.testing.assert_close(moved_parameters[0]["0.weight"], model[0].weight.detach())
    assert set(moved_parameters[0]) == {"0.weight", "0.bias"}


class TwoKinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3).double()

    def forward(self, inputs):
        return self.last(self.first(inputs).tanh().double())


def test_parameters_keep_their_own_dtype():
    assert limit_after(TwoKinds(), 0.1) is not None


def test_step_of_a_model_that_is_one_layer_moves_nothing():
    assert limit_after(nn.Linear(5, 3), 0.1) == pytest.approx(limit_after(nn.Linear(5, 3), 1e6))


@pytest.mark.parametrize("times", [1, 4])
def test_step_out_of_the_range_of_numbers_is_shortened(monkeypatch, times):
    real, lengths = prediction.last_layer, []

    def seen(evaluator, moved):
        found = real(evaluator, moved)
        lengths.append(float((moved["0.weight"] - evaluator.point["0.weight"]).norm()))
        if len(lengths) > times:
            return found
        broken = tuple(features * math.inf for features in found.features)
        return LastLayer(found.name, found.weight, found.bias, broken, found.targets)

    monkeypatch.setattr(prediction, "last_layer", seen)
    assert (limit_after(network(), 1.0) == 0) == (times == 4)
    for one, shorter in itertools.pairwise(lengths):
        assert shorter == pytest.approx(one / 4, rel=1e-3)
