import copy

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, quadratic, small_network
from torch import nn

from normscope.curvature.problem import Problem
from normscope.learning_rate import by_curvature
from normscope.learning_rate.by_curvature import predicted_onset
from normscope.learning_rate.last_layer import LastLayer
from normscope.learning_rate.last_layer_onset import last_layer_onset
from normscope.learning_rate.one_step import OneStep
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rules import UpdateRule
from normscope.learning_rate.steepest import Curvature

SGD = UpdateRule("SGD")


def measured(bound, sharpening=1.0, beyond=None):
    """A curvature that gives these to plain gradient descent."""
    later = (2 / bound,) if beyond is None else (2 / bound, 2 / beyond)
    ahead = None if beyond is None else 2 / beyond
    found = Curvature((2 / bound / sharpening,), later, {}, "ggn", True, 0.0, 0.0, ahead)
    return lambda: found


def unasked():
    raise AssertionError("the curvature was asked for")


def alike(problem):
    """The same with a last layer so small that its outputs hardly differ."""
    with torch.no_grad():
        problem.model[3].weight.mul_(1e-3)
    return problem


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
    found = predicted_onset(problem, halves(), rule, unasked)
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
    found = predicted_onset(problem, halves(), rule, unasked, divisor)
    moved = features_after_a_step(model, found.standing, scale=7.0)
    assert found.rate == pytest.approx(last_layer_onset(moved, problem, rule))


def test_linear_model_is_predicted_by_its_quadratic():
    problem = quadratic()
    found = predicted_onset(problem, [problem.data], SGD, measured(0.5))
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
    found = predicted_onset(problem, [problem.data], SGD, measured(0.2))
    assert found.rate == pytest.approx(factor * 0.2)
    assert found.layer is None
    assert "no linear last layer with trained weights of its own" in found.reason


def test_last_layer_that_is_always_stable_leaves_it_to_the_bound(monkeypatch):
    monkeypatch.setattr(by_curvature, "last_layer_onset", lambda *_: None)
    problem = Problem(small_network(), "cross_entropy", halves())
    found = predicted_onset(problem, halves(), SGD, measured(0.2))
    assert found.rate == pytest.approx(3 * 0.2)
    assert found.reason.endswith("the model is stable at every rate in its last layer")


@pytest.mark.parametrize(("after", "upset"), [(2.51, False), (2.49, True), (0.0, True)])
def test_curvature_is_asked_for_if_one_step_upsets_the_last_layer(monkeypatch, after, upset):
    monkeypatch.setattr(by_curvature, "last_layer_onset", lambda *_: 10.0)
    monkeypatch.setattr(OneStep, "onset_after", lambda self, rate, near: after)
    monkeypatch.setattr(OneStep, "holds", lambda self, rate: after >= rate)
    problem = Problem(small_network(), "cross_entropy", halves())
    found = predicted_onset(problem, halves(), SGD, measured(0.2) if upset else unasked)
    if upset:
        assert found.rate == pytest.approx(0.6 if after else 0.2)  # zero: no rate holds
        assert "times the bound, as far as one step" in found.reason
    else:
        assert found.rate == after
        assert found.reason.startswith("the last layer")
    assert (found.layer, found.standing) == ("3", 10.0)


@pytest.mark.parametrize(("bound", "rate"), [(1.0, 2.0), (0.5, 1.5), (5.0, 5.0)])
def test_upset_net_takes_what_one_step_leaves_stable(monkeypatch, bound, rate):
    monkeypatch.setattr(by_curvature, "last_layer_onset", lambda *_: 100.0)
    monkeypatch.setattr(OneStep, "onset_after", lambda self, rate, near: 4.0 / rate)
    monkeypatch.setattr(OneStep, "holds", lambda self, rate: 4.0 / rate >= rate)
    problem = Problem(small_network(), "squared_error", halves())
    found = predicted_onset(problem, halves(), SGD, measured(bound))
    assert rate / 3 ** (1 / 8) <= found.rate <= rate * (1 + 1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_gain_of_momentum_on_a_quadratic_is_not_allowed_for(monkeypatch, momentum):
    monkeypatch.setattr(by_curvature, "last_layer_onset", lambda *_: 100.0)
    monkeypatch.setattr(OneStep, "onset_after", lambda self, rate, near: 10.0)
    monkeypatch.setattr(OneStep, "holds", lambda self, rate: rate <= 10.0)
    rule, curvature = UpdateRule("SGD", momentum), measured(0.2)
    for model in (small_network(), nn.Sequential(nn.Linear(5, 3), nn.Tanh())):
        problem = Problem(model, "cross_entropy", halves())
        found = predicted_onset(problem, halves(), rule, curvature)
        assert curvature().bound(rule) == pytest.approx((1 + momentum) * 0.2)
        assert found.rate == pytest.approx(3 * 0.2)


def test_step_that_gives_no_onset_keeps_that_of_the_features_as_they_are(monkeypatch):
    monkeypatch.setattr(OneStep, "onset_after", lambda self, rate, near: None)
    problem = Problem(small_network(), "cross_entropy", halves())
    found = predicted_onset(problem, halves(), SGD, unasked)
    assert found.rate == found.standing


@pytest.mark.parametrize(("loss", "factor"), [("cross_entropy", 3.0), ("squared_error", 1.0)])
def test_net_on_a_plateau_is_predicted_by_the_bound_beyond(loss, factor):
    problem = alike(Problem(small_network(), loss, halves()))
    curvature = measured(0.2, sharpening=20.0, beyond=0.3)
    found = predicted_onset(problem, halves(), SGD, curvature)
    assert found.rate == pytest.approx(factor * 0.3)
    assert found.layer is None
    assert "begins on a plateau" in found.reason


def test_net_without_a_last_layer_may_begin_on_a_plateau_too():
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh())
    problem = Problem(model, "cross_entropy", labelled())
    found = predicted_onset(problem, [problem.data], SGD, measured(0.2, 20.0, beyond=0.3))
    assert found.rate == pytest.approx(3 * 0.3)
    assert "begins on a plateau" in found.reason


@pytest.mark.parametrize("sharpening", [3.0, 10.0])
def test_outputs_nearly_alike_are_trusted_only_if_the_net_stays_as_steep(sharpening):
    problem = alike(Problem(small_network(), "cross_entropy", halves()))
    found = predicted_onset(problem, halves(), SGD, measured(0.2, sharpening))
    if sharpening < 4:
        assert found.reason.startswith("the last layer (3), trained alone")
    else:
        assert 0.2 <= found.rate <= 0.6 * (1 + 1e-12)
        assert "times the bound" in found.reason
