"""How the parts of an advice are put together: which batches, which curvature, which divisor."""

import math

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, plateau, small_network
from torch import nn
from torch.optim import Adam

from normscope.learning_rate import advisor, max_learning_rate, prediction
from normscope.learning_rate.sample_trials import SampleTrials
from normscope.learning_rate.update_rule import rule_of
from normscope.problem.problem import Problem


def asked(model, data=None, **options):
    data = labelled() if data is None else data
    return max_learning_rate(model, "cross_entropy", data, verify=False, **options)


@pytest.mark.parametrize(("batch_size", "curved", "seen"), [(8, 3, 4), (32, 2, 2), (None, 1, 1)])
def test_three_batches_are_curved_and_four_seen(batch_size, curved, seen):
    found = asked(small_network(), batch_size=batch_size)
    assert len(found.curvature.values) == curved
    assert f"the features of {seen} batch" in found.prediction.reason


def test_batch_size_is_that_of_the_largest_batch():
    inputs, targets = labelled()
    uneven = [(inputs[:8], targets[:8]), (inputs[8:40], targets[8:40]), (inputs[40:], targets[40:])]
    assert asked(small_network(), uneven).batch_size == 32


def test_kinds_of_normalization_are_named_once():
    layers = [nn.Linear(5, 8), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.BatchNorm1d(8)]
    found = asked(nn.Sequential(*layers, nn.Linear(8, 3)))
    assert found.norms == ("batch", "layer")
    assert asked(small_network(norm=False)).norms == ()


def test_divisor_is_that_of_the_gradients_of_all_batches_in_training():
    model, (inputs, targets) = small_network().double(), labelled()
    model[1].running_mean.fill_(5.0)  # evaluation mode would show
    halves = list(zip(inputs.double().split(32), targets.split(32), strict=True))
    optimizer = Adam(model.parameters(), eps=1e-8)
    problem = Problem(model, "cross_entropy", halves)
    found = advisor._preconditioner(problem, halves, optimizer, rule_of(optimizer), 0)
    squares = torch.zeros_like(found.scale)
    for features, labels in halves:
        loss = nn.functional.cross_entropy(model.train()(features), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        squares += torch.cat([each.flatten() for each in gradients]).square() / 2
    expected = squares.sqrt() + 1e-8
    assert torch.allclose(found.scale, expected.clamp(min=1e-6 * float(expected.max())))


def test_prediction_knows_the_divisor(monkeypatch):
    real, given = advisor.predict_limit, []

    def noting(*arguments):
        given.extend(arguments)
        return real(*arguments)

    monkeypatch.setattr(advisor, "predict_limit", noting)
    asked(small_network(), optimizer=Adam)
    scale = next(each.scale for each in given if hasattr(each, "scale"))
    assert scale.shape == (sum(p.numel() for p in small_network().parameters()),)


def test_prediction_knows_the_bound_that_the_curvature_allows(monkeypatch):
    monkeypatch.setattr(
        prediction, "run_sample_trials", lambda *_: SampleTrials(0.0, math.inf, 32, 0, False)
    )
    found = asked(small_network(norm=False))
    assert found.predicted == found.bound


def test_prediction_leads_the_net_off_its_plateau():
    problem = plateau(0.15)
    found = max_learning_rate(problem.model, problem.loss, problem.data, verify=False)
    assert found.curvature.starts_on_plateau
    assert "once its loss decreases" in found.prediction.reason
    assert 0.14 / 1.3 < found.predicted < 0.16 * 1.3  # held in 100 steps; broke after 41
