import copy
import math

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, quadratic, small_network
from torch import nn

from normscope.curvature.problem import Problem
from normscope.learning_rate import by_curvature
from normscope.learning_rate.by_curvature import predicted_onset
from normscope.learning_rate.last_layer import LastLayer
from normscope.learning_rate.last_layer_onset import last_layer_onset
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rules import UpdateRule

SGD = UpdateRule("SGD")


def halves():
    inputs, targets = labelled()
    return [(inputs[:32], targets[:32]), (inputs[32:], targets[32:])]


def features_after_a_step(model, rate, scale=None):
    """The last layer on features after one step of the layers before it, by plain torch."""
    moved, batches = copy.deepcopy(model).train(), halves()
    nn.functional.cross_entropy(moved(batches[-1][0]), batches[-1][1]).backward()
    with torch.no_grad():
        for parameter in moved[:3].parameters():
            parameter -= rate * parameter.grad / (1.0 if scale is None else scale)
        features = tuple(moved[:3](inputs) for inputs, _ in batches)
    weight, bias = model[3].weight.detach(), model[3].bias.detach()
    return LastLayer("3", weight, bias, features, tuple(targets for _, targets in batches))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_prediction_is_the_onset_of_the_last_layer_after_one_step(momentum):
    model, rule = small_network(), UpdateRule("SGD", momentum)
    problem = Problem(model, "cross_entropy", halves())
    found = predicted_onset(problem, halves(), rule, bound=1.0)
    assert found.layer == "3"
    assert found.standing == last_layer_onset(features_after_a_step(model, 0.0), problem, rule)
    expected = last_layer_onset(features_after_a_step(model, found.standing), problem, rule)
    assert found.rate == pytest.approx(expected)
    assert "the last layer (3)" in found.reason


def test_step_is_divided_by_the_preconditioner():
    model, rule = small_network(), SGD
    problem = Problem(model, "cross_entropy", halves())
    size = sum(parameter.numel() for parameter in model.parameters())
    divisor = Preconditioner(torch.full((size,), 7.0), is_given=True)
    found = predicted_onset(problem, halves(), rule, 1.0, divisor)
    moved = features_after_a_step(model, found.standing, scale=7.0)
    assert found.rate == pytest.approx(last_layer_onset(moved, problem, rule))


def test_linear_model_is_predicted_by_its_quadratic():
    problem = quadratic()
    found = predicted_onset(problem, [problem.data], SGD, bound=0.5)
    assert found.rate == pytest.approx(0.5, rel=0.15)
    assert found.standing == found.rate  # no other layer moves


@pytest.mark.parametrize(
    ("loss", "factor"),
    [
        ("cross_entropy", 3.0),
        (nn.functional.cross_entropy, 3.0),
        (nn.CrossEntropyLoss(), 3.0),
        (nn.L1Loss(), 1.0),
    ],
)
def test_model_without_a_linear_last_layer_gets_the_bound(loss, factor):
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh())
    inputs, targets = labelled()
    if factor == 1.0:
        targets = torch.randn(len(inputs), 3)
    problem = Problem(model, loss, (inputs, targets))
    found = predicted_onset(problem, [problem.data], SGD, bound=0.2)
    assert found.rate == pytest.approx(factor * 0.2)
    assert found.layer is None
    assert "no linear last layer with trained weights of its own" in found.reason


@pytest.mark.parametrize(("after", "rate"), [(3.0, 3.0), (2.0, math.sqrt(2.0 * 3 * 0.2))])
def test_last_layer_that_one_step_upsets_counts_only_half(monkeypatch, after, rate):
    answers = iter([10.0, after])
    monkeypatch.setattr(by_curvature, "last_layer_onset", lambda *_, **near: next(answers))
    problem = Problem(small_network(), "cross_entropy", halves())
    found = predicted_onset(problem, halves(), SGD, bound=0.2)
    assert found.rate == pytest.approx(rate)
    assert ("times the bound" in found.reason) == (rate != after)


def test_step_out_of_the_range_of_numbers_is_shortened(monkeypatch):
    rates = []
    real = by_curvature.last_layer

    def seen(evaluator, moved=None):
        found = real(evaluator, moved)
        if moved is not None:
            rates.append(float((moved["0.weight"] - evaluator.point["0.weight"]).norm()))
            if len(rates) == 1:
                broken = tuple(features * math.inf for features in found.features)
                return LastLayer(found.name, found.weight, found.bias, broken, found.targets)
        return found

    monkeypatch.setattr(by_curvature, "last_layer", seen)
    problem = Problem(small_network(), "cross_entropy", halves())
    assert math.isfinite(predicted_onset(problem, halves(), SGD, bound=0.2).rate)
    assert rates[1] == pytest.approx(rates[0] / 4, rel=1e-3)


@pytest.mark.parametrize(("loss", "factor"), [("cross_entropy", 3.0), ("squared_error", 1.0)])
def test_net_on_a_plateau_is_predicted_by_the_bound_beyond(loss, factor):
    problem = Problem(small_network(), loss, halves())
    found = predicted_onset(problem, halves(), SGD, bound=0.2, sharpening=10.0, beyond=0.3)
    assert found.rate == pytest.approx(factor * 0.3)
    assert found.layer is None
    assert "begins on a plateau" in found.reason


def test_net_that_grows_far_steeper_is_predicted_between_last_layer_and_bound():
    problem = Problem(small_network(), "cross_entropy", halves())
    flat = predicted_onset(problem, halves(), SGD, bound=0.2)
    steep = predicted_onset(problem, halves(), SGD, bound=0.2, sharpening=10.0)
    assert flat.reason.startswith("the last layer")
    assert steep.reason.startswith("between the last layer")
    assert steep.rate == pytest.approx(math.sqrt(flat.rate * 3 * 0.2))
