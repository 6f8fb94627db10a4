"""The simulated last layer against torch's own optimizers on the same layer."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from tests.unit.learning_rate.problems import labelled
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from normscope.learning_rate import last_layer_onset as search
from normscope.learning_rate.last_layer import LastLayer
from normscope.learning_rate.last_layer_onset import last_layer_onset
from normscope.learning_rate.onset import STEPS, growth_limit
from normscope.learning_rate.rules import rule_of
from normscope.learning_rate.simulation import Simulation, _Start, _Weights
from normscope.problem.problem import Problem

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


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("bias", [True, False])
def test_updates_are_those_of_torch(make, bias):
    layer, given = linear(bias), batches()
    problem = Problem(layer, "cross_entropy", given)
    weights = _Weights(
        _Start(as_last_layer(layer, given)), rule_of(make(layer.parameters(), 1.0)), [0.1, 0.02]
    )
    for step in range(7):
        outputs = weights.outputs(step % 2).requires_grad_()
        total = sum(problem.loss_of(output, given[step % 2][1]) for output in outputs.mT)
        weights.update(step % 2, torch.autograd.grad(total, outputs)[0])
    for place, rate in enumerate((0.1, 0.02)):
        expected, _ = trained(make, rate, bias, 7, problem.loss)
        found = weights.value[place]
        assert torch.allclose(found[:, :5], expected.weight, rtol=1e-10, atol=1e-12)
        if bias:
            assert torch.allclose(found[:, 5], expected.bias, rtol=1e-10, atol=1e-12)


def test_offset_is_added_and_stays():
    layer, given = linear(), batches()
    held = replace(as_last_layer(layer, given), bias=None, offset=layer.bias.detach())
    weights = _Weights(_Start(held), rule_of(SGD(layer.parameters(), 1.0)), [0.1, 0.2])
    layer.bias.requires_grad_(False)
    optimizer = SGD([layer.weight], lr=0.2)
    for step in range(3):
        inputs, targets = given[step % 2]
        outputs = weights.outputs(step % 2).requires_grad_()
        assert torch.allclose(outputs[1].T, layer(inputs))
        total = sum(nn.functional.cross_entropy(output, targets) for output in outputs.mT)
        weights.update(step % 2, torch.autograd.grad(total, outputs)[0])
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(inputs), targets).backward()
        optimizer.step()
    assert torch.allclose(weights.value[1], layer.weight)


@pytest.mark.parametrize(
    ("make", "loss"),
    list(zip(OPTIMIZERS, itertools.cycle(["squared_error", "cross_entropy"]), strict=False)),
)
def test_stable_rates_are_those_of_real_runs(make, loss):
    layer, given = linear(), batches()
    problem = Problem(layer, loss, given)
    rule = rule_of(make(layer.parameters(), 1.0))
    rates = [0.02 * 4**power for power in range(6)]
    found = Simulation(as_last_layer(layer, given), problem, rule).stable(rates)
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
    onset = last_layer_onset(
        as_last_layer(layer, given), problem, rule_of(SGD(layer.parameters(), 1.0))
    )
    assert onset == pytest.approx(2 / largest, rel=0.1)


def test_onset_is_found_whatever_the_scale_of_the_loss():
    layer, given = linear(), batches()
    rule = rule_of(SGD(layer.parameters(), 1.0))

    def onset(scale):
        def loss(output, target):
            return scale * nn.functional.cross_entropy(output, target)

        return last_layer_onset(as_last_layer(layer, given), Problem(layer, loss, given), rule)

    reference = onset(1.0)
    for scale in (1e-4, 1e5):
        assert onset(scale) * scale == pytest.approx(reference, rel=0.2)


@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
@pytest.mark.parametrize("factor", [1e-6, 0.3, 0.6, 1.0, 2.0, 3.5, 20.0, 1e9])
def test_rate_that_is_near_or_far_changes_no_answer(loss, factor, monkeypatch):
    layer, given = linear(), batches()
    problem, rule = Problem(layer, loss, given), rule_of(SGD(layer.parameters(), 1.0))
    expected = last_layer_onset(as_last_layer(layer, given), problem, rule)
    tried, stable = [], Simulation.stable

    def counted(self, rates, *steps):
        tried.append(rates)
        return stable(self, rates, *steps)

    monkeypatch.setattr(Simulation, "stable", counted)
    found = last_layer_onset(as_last_layer(layer, given), problem, rule, near=factor * expected)
    assert found == pytest.approx(expected, rel=1e-9)
    assert (len(tried) == 1) == (0.5 < factor < 4)


@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
@pytest.mark.parametrize("at_once", [1.0, 3.0, 20.0, 1e3, math.inf])
def test_onset_that_shows_late_is_found_below_one_that_shows_at_once(at_once, loss, monkeypatch):
    layer, given = linear(), batches()
    problem, rule = Problem(layer, loss, given), rule_of(SGD(layer.parameters(), 1.0))

    def stable(self, rates, steps=STEPS):
        return [rate < (1.0 if steps == STEPS else at_once) for rate in rates]

    monkeypatch.setattr(Simulation, "stable", stable)
    for scale in (1e-3, 1.0, 30.0):
        monkeypatch.setattr(search, "_guess", lambda layer, rule, scale=scale: scale)
        found = last_layer_onset(as_last_layer(layer, given), problem, rule)
        assert found == pytest.approx(1.0, rel=0.13)


@pytest.mark.parametrize("loss", ["squared_error", nn.MSELoss(), nn.MSELoss(reduction="sum")])
def test_squared_errors_are_searched_around_their_bound_at_once(loss, monkeypatch):
    layer, given = linear(), batches()
    given = [(inputs, nn.functional.one_hot(labels, 3).double()) for inputs, labels in given]
    runs, stable = [], Simulation.stable

    def counted(self, rates, steps=STEPS):
        runs.append(steps)
        return stable(self, rates, steps)

    monkeypatch.setattr(Simulation, "stable", counted)
    rule = rule_of(SGD(layer.parameters(), 1.0, momentum=0.9))
    held = as_last_layer(layer, given)
    assert last_layer_onset(held, Problem(layer, loss, given), rule) is not None
    assert runs == [STEPS]


def test_rate_that_breaks_late_sends_the_search_down_by_one_coarse_step(monkeypatch):
    layer, given = linear(), batches()
    tried = []

    def stable(self, rates, steps=STEPS):
        tried.append(len(rates))
        return [rate < (1.0 if steps == STEPS else 3.0) for rate in rates]

    monkeypatch.setattr(Simulation, "stable", stable)
    monkeypatch.setattr(search, "_guess", lambda layer, rule: 3.0)  # the grid begins at 1.5
    rule = rule_of(SGD(layer.parameters(), 1.0))
    problem = Problem(layer, "cross_entropy", given)
    assert last_layer_onset(as_last_layer(layer, given), problem, rule) == pytest.approx(1, rel=0.2)
    assert tried == [5, 6, 6]


def test_layer_that_is_always_stable_has_no_onset():
    layer, given = linear(), batches()
    problem = Problem(layer, lambda output, target: 1 + 0 * output.sum(), given)
    assert (
        last_layer_onset(
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
    outputs = _Weights(_Start(held), rule, [1.0, 2.0]).outputs(0)
    assert outputs.shape == (2, 3, 6 * 7)
    assert torch.allclose(outputs[1].T.view(6, 7, 3), layer(features))
    assert last_layer_onset(held, Problem(layer, loss, (features, targets)), rule) > 0
