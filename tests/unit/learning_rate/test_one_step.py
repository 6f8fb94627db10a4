import copy
import itertools
import math

import pytest
import torch
from tests.unit.learning_rate.problems import labelled
from torch import nn

from normscope.learning_rate import one_step
from normscope.learning_rate.last_layer import LastLayer, last_layer
from normscope.learning_rate.last_layer_onset import last_layer_onset
from normscope.learning_rate.one_step import OneStep
from normscope.learning_rate.rules import UpdateRule, rule_of
from normscope.problem.evaluate import Evaluator
from normscope.problem.parameters import parameter_layout
from normscope.problem.problem import Problem

SGD = UpdateRule("SGD")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def step_of(model, rule=SGD):
    batch = labelled()
    problem = Problem(model, "cross_entropy", [batch])
    evaluator = Evaluator(problem, parameter_layout(model), "train", 0)
    layer = last_layer(evaluator)
    assert layer is not None
    return problem, OneStep(evaluator, batch, layer, rule)


def onset_by_plain_torch(model, problem, rate):
    """The same by a step of a copy."""
    moved, (inputs, targets) = copy.deepcopy(model), labelled()
    nn.functional.cross_entropy(moved(inputs), targets).backward()
    with torch.no_grad():
        for parameter in moved[0].parameters():
            parameter -= rate * parameter.grad
        features = moved[:2](inputs)
    weight, bias = model[2].weight.detach(), model[2].bias.detach()
    return last_layer_onset(LastLayer("2", weight, bias, (features,), (targets,)), problem, SGD)


@pytest.mark.parametrize("rate", [0.1, 3.0, 30.0])
def test_onset_after_a_step_is_that_of_a_copy_that_took_it(rate):
    model = network()
    problem, step = step_of(model)
    expected = onset_by_plain_torch(model, problem, rate)
    assert step.onset_after(rate, near=5.0) == pytest.approx(expected)


@pytest.mark.parametrize("nesterov", [False, True])
def test_step_is_the_first_of_torch(nesterov):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=nesterov)
    _, step = step_of(model, rule_of(optimizer))
    before = model[0].weight.detach().clone()
    inputs, targets = labelled()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    torch.testing.assert_close(before - 0.3 * step._steps["0.weight"], model[0].weight.detach())


class TwoKinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3).double()

    def forward(self, inputs):
        return self.last(self.first(inputs).tanh().double())


def test_parameters_keep_their_own_dtype():
    _, step = step_of(TwoKinds())
    assert step.onset_after(0.1, near=5.0) is not None


def test_step_of_a_model_that_is_one_layer_moves_nothing():
    _, step = step_of(nn.Linear(5, 3))
    assert step.onset_after(0.1, near=5.0) == step.onset_after(1e6, near=5.0)


@pytest.mark.parametrize("times", [1, 4])
def test_step_out_of_the_range_of_numbers_is_shortened(monkeypatch, times):
    real, lengths = one_step.last_layer, []

    def seen(evaluator, moved):
        found = real(evaluator, moved)
        lengths.append(float((moved["0.weight"] - evaluator.point["0.weight"]).norm()))
        if len(lengths) > times:
            return found
        broken = tuple(features * math.inf for features in found.features)
        return LastLayer(found.name, found.weight, found.bias, broken, found.targets)

    _, step = step_of(network())
    monkeypatch.setattr(one_step, "last_layer", seen)
    onset = step.onset_after(1.0, near=5.0)
    assert (onset == 0) == (times == 4)
    for one, shorter in itertools.pairwise(lengths):
        assert shorter == pytest.approx(one / 4, rel=1e-3)
