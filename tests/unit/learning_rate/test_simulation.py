"""The simulated last layer against torch's own optimizers on the same layer."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from tests.unit.learning_rate.problems import labelled
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from normscope.learning_rate import last_layer_training
from normscope.learning_rate.last_layer import LastLayer
from normscope.learning_rate.last_layer_training import (
    LastLayerTraining,
    last_layer_limit,
)
from normscope.learning_rate.stability import STEPS, growth_limit
from normscope.learning_rate.update_rule import rule_of
from normscope.problem.problem import Problem

BOUND = "_squared_error_bound"
OPTIMIZERS = [
    lambda parameters, rate: SGD(parameters, lr=rate),
    lambda parameters, rate: SGD(parameters, lr=rate, momentum=0.9, dampening=0.3),
    lambda parameters, rate: SGD(parameters, lr=rate, momentum=0.8, nesterov=True),
    lambda parameters, rate: SGD(parameters, lr=rate, momentum=0.5, weight_decay=0.1),
    lambda parameters, rate: Adam(parameters, lr=rate, weight_decay=0.1),
    lambda parameters, rate: AdamW(parameters, lr=rate, weight_decay=0.1),
    lambda parameters, rate: RMSprop(parameters, lr=rate, momentum=0.5),
    lambda parameters, rate: Adam(parameters, lr=rate, betas=(0.9, 0.5), amsgrad=True),
    lambda parameters, rate: RMSprop(parameters, lr=rate, alpha=0.9, centered=True),
]


def batches():
    inputs, targets = labelled(24)
    return [(inputs[:12].double(), targets[:12]), (inputs[12:].double(), targets[12:])]


def linear(bias=True):
    torch.manual_seed(0)
    return nn.Linear(5, 3, bias=bias, dtype=torch.float64)


def as_last_layer(layer, given):
    bias = None if layer.bias is None else layer.bias.detach()
    features, targets = zip(*given, strict=True)
    return LastLayer("", layer.weight.detach(), bias, features, targets)


def trained(make, rate, bias, steps, loss):
    """Weights and losses by torch's own loop."""
    layer, given, losses = linear(bias), batches(), []
    optimizer = make(layer.parameters(), rate)
    for step in range(steps):
        inputs, targets = given[step % 2]
        value = loss(layer(inputs), targets)
        losses.append(value.item())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return layer, losses


def real_run_is_stable(make, rate, layer_of, loss):
    """Whether torch's own loop stays below the limit of growth."""
    layer, given, first = layer_of(), batches(), None
    optimizer = make([each for each in layer.parameters() if each.requires_grad], rate)
    for step in range(STEPS):
        inputs, targets = given[step % 2]
        value = loss(layer(inputs), targets)
        first = value.item() if first is None else first
        if not value.item() <= growth_limit(loss) * first:
            return False
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return True


@pytest.mark.parametrize("bias", [True, False, "frozen"])
def test_bias_is_trained_left_out_or_constant(bias):
    def layer_of():
        layer = linear(bool(bias))
        if bias:
            layer.bias.data.add_(torch.tensor([0.0, 3.0, -3.0]))
        return layer.requires_grad_(True) if bias != "frozen" else frozen_bias(layer)

    def frozen_bias(layer):
        layer.bias.requires_grad_(False)
        return layer

    layer, given = layer_of(), batches()
    held = as_last_layer(layer, given)
    if bias == "frozen":
        held = replace(held, bias=None, offset=layer.bias.detach())
    problem = Problem(layer, "cross_entropy", given)
    rates = [0.1 * 1.3**power for power in range(20)]
    training = LastLayerTraining(held, problem, rule_of(SGD(linear().parameters(), 1.0)))
    expected = [real_run_is_stable(SGD, rate, layer_of, problem.loss) for rate in rates]
    assert training.stable(rates) == expected
    assert set(expected) == {True, False}


@pytest.mark.parametrize(
    ("make", "loss"),
    list(zip(OPTIMIZERS, itertools.cycle(["squared_error", "cross_entropy"]), strict=False)),
)
def test_stable_rates_are_those_of_real_runs(make, loss):
    layer, given = linear(), batches()
    problem = Problem(layer, loss, given)
    rule = rule_of(make(layer.parameters(), 1.0))
    rates = [0.02 * 4**power for power in range(6)]
    found = LastLayerTraining(as_last_layer(layer, given), problem, rule).stable(rates)
    limit = growth_limit(problem.loss)
    expected = []
    for rate in rates:
        _, losses = trained(make, rate, True, STEPS, problem.loss)
        expected.append(all(value <= limit * losses[0] for value in losses))
    assert found == expected
    assert set(found) == {True, False}  # the rates enclose the onset


def test_onset_is_that_of_the_quadratic():
    layer, given = linear(), batches()[:1]
    inputs = torch.cat([given[0][0], torch.ones(12, 1, dtype=torch.float64)], dim=1)
    largest = float(torch.linalg.eigvalsh(inputs.T @ inputs / 12).amax())
    problem = Problem(layer, "squared_error", given)
    onset = last_layer_limit(
        as_last_layer(layer, given), problem, rule_of(SGD(layer.parameters(), 1.0))
    )
    assert onset == pytest.approx(2 / largest, rel=0.1)


def test_onset_is_found_whatever_the_scale_of_the_loss():
    layer, given = linear(), batches()
    rule = rule_of(SGD(layer.parameters(), 1.0))

    def onset(scale):
        def loss(output, target):
            return scale * nn.functional.cross_entropy(output, target)

        return last_layer_limit(as_last_layer(layer, given), Problem(layer, loss, given), rule)

    reference = onset(1.0)
    for scale in (1e-4, 1e5):
        assert onset(scale) * scale == pytest.approx(reference, rel=0.2)


@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
@pytest.mark.parametrize("factor", [1e-6, 0.3, 0.6, 1.0, 2.0, 3.5, 20.0, 1e9])
def test_rate_that_is_near_or_far_changes_no_answer(loss, factor, monkeypatch):
    layer, given = linear(), batches()
    problem, rule = Problem(layer, loss, given), rule_of(SGD(layer.parameters(), 1.0))
    expected = last_layer_limit(as_last_layer(layer, given), problem, rule)
    tried, stable = [], LastLayerTraining.stable

    def counted(self, rates, *steps):
        tried.append(rates)
        return stable(self, rates, *steps)

    monkeypatch.setattr(LastLayerTraining, "stable", counted)
    found = last_layer_limit(as_last_layer(layer, given), problem, rule, near=factor * expected)
    assert found == pytest.approx(expected, rel=1e-9)
    assert (len(tried) == 1) == (0.5 < factor < 4)


@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
@pytest.mark.parametrize("at_once", [1.0, 3.0, 20.0, 1e3, math.inf])
def test_onset_that_shows_late_is_found_below_one_that_shows_at_once(at_once, loss, monkeypatch):
    layer, given = linear(), batches()
    problem, rule = Problem(layer, loss, given), rule_of(SGD(layer.parameters(), 1.0))

    def stable(self, rates, steps=STEPS):
        return [rate < (1.0 if steps == STEPS else at_once) for rate in rates]

    monkeypatch.setattr(LastLayerTraining, "stable", stable)
    for scale in (1e-3, 1.0, 30.0):
        monkeypatch.setattr(
            last_layer_training, "_squared_error_bound", lambda layer, rule, scale=scale: scale
        )
        found = last_layer_limit(as_last_layer(layer, given), problem, rule)
        assert found == pytest.approx(1.0, rel=0.13)


@pytest.mark.parametrize("loss", ["squared_error", nn.MSELoss(), nn.MSELoss(reduction="sum")])
def test_squared_errors_are_searched_around_their_bound_at_once(loss, monkeypatch):
    layer, given = linear(), batches()
    given = [(inputs, nn.functional.one_hot(labels, 3).double()) for inputs, labels in given]
    runs, stable = [], LastLayerTraining.stable

    def counted(self, rates, steps=STEPS):
        runs.append(steps)
        return stable(self, rates, steps)

    monkeypatch.setattr(LastLayerTraining, "stable", counted)
    rule = rule_of(SGD(layer.parameters(), 1.0, momentum=0.9))
    held = as_last_layer(layer, given)
    assert last_layer_limit(held, Problem(layer, loss, given), rule) is not None
    assert runs == [STEPS]


def test_rate_that_breaks_late_sends_the_search_down_by_one_coarse_step(monkeypatch):
    layer, given = linear(), batches()
    tried = []

    def stable(self, rates, steps=STEPS):
        tried.append(len(rates))
        return [rate < (1.0 if steps == STEPS else 3.0) for rate in rates]

    monkeypatch.setattr(LastLayerTraining, "stable", stable)
    monkeypatch.setattr(
        last_layer_training, "_squared_error_bound", lambda layer, rule: 3.0
    )  # the grid begins at 1.5
    rule = rule_of(SGD(layer.parameters(), 1.0))
    problem = Problem(layer, "cross_entropy", given)
    assert last_layer_limit(as_last_layer(layer, given), problem, rule) == pytest.approx(1, rel=0.2)
    assert tried == [5, 6, 6]


def test_layer_that_is_always_stable_has_no_onset():
    layer, given = linear(), batches()
    problem = Problem(layer, lambda output, target: 1 + 0 * output.sum(), given)
    assert (
        last_layer_limit(
            as_last_layer(layer, given), problem, rule_of(SGD(layer.parameters(), 1.0))
        )
        is None
    )


def test_outputs_with_positions_are_simulated_too():
    torch.manual_seed(1)
    layer = nn.Linear(4, 3, dtype=torch.float64)
    features = torch.randn(6, 7, 4, dtype=torch.float64)
    targets = torch.randint(3, (6, 7))

    def loss(output, target):
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    held = LastLayer("", layer.weight.detach(), layer.bias.detach(), (features,), (targets,))
    rule = rule_of(SGD(layer.parameters(), 1.0))
    training = LastLayerTraining(held, Problem(layer, loss, (features, targets)), rule)
    outputs = training._outputs(training._weights.expand(2, -1, -1).contiguous(), 0)
    assert outputs.shape == (2, 3, 6 * 7)
    assert torch.allclose(outputs[1].T.view(6, 7, 3), layer(features))
    assert last_layer_limit(held, Problem(layer, loss, (features, targets)), rule) > 0
