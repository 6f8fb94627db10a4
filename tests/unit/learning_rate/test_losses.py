"""Limits of losses other than the cross-entropy and the squared error."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.errors import StateError
from normscope.learning_rate.bound import measure_curvature
from normscope.learning_rate.update_rule import UpdateRule
from normscope.problem import Problem


def one_hot(labels):
    return functional.one_hot(labels, 10).float()


def hinge(output, target):
    return functional.relu(1 - (2 * target - 1) * output).mean()


def own_sum(output, target):
    return -(output.log_softmax(1) * target).sum()


def digits():
    """Batches of 128 in a fixed order: another one gives another limit."""
    inputs, labels = ns.data.load("digits").train
    return DataLoader(TensorDataset(inputs[:1024].flatten(1), one_hot(labels[:1024])), 128)


def network(norm=False, *last):
    torch.manual_seed(0)
    norms = nn.BatchNorm1d(24) if norm else nn.Identity()
    return nn.Sequential(nn.Linear(64, 24), norms, nn.ReLU(), nn.Linear(24, 10), *last)


def onset(model, loss_of, growth, low):
    """The limit above a low rate, by a search of its own: plain steps on copies."""
    batches = list(digits())

    def is_unstable(rate):
        twin, first = copy.deepcopy(model), None
        optimizer = torch.optim.SGD(twin.parameters(), rate)
        for step in range(100):
            inputs, targets = batches[step % len(batches)]
            loss = loss_of(twin(inputs), targets)
            first = loss.item() if first is None else first
            if not math.isfinite(loss.item()) or loss.item() > growth * first:
                return True
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return False

    high = low
    assert not is_unstable(low)
    while not is_unstable(high):
        low, high = high, high * 1.3
    while high > 1.05 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_unstable(middle) else (middle, high)
    return math.sqrt(low * high)


LOSSES = {
    "cross-entropy, summed": (nn.CrossEntropyLoss(reduction="sum"), ()),
    "squares, summed": (nn.MSELoss(reduction="sum"), ()),
    "custom, summed": (own_sum, ()),
    "logits": (nn.BCEWithLogitsLoss(), ()),
    "logits, summed": (nn.BCEWithLogitsLoss(reduction="sum"), ()),
    "probabilities": (nn.BCELoss(), (nn.Sigmoid(),)),
    "absolute": (nn.L1Loss(), ()),
    "smooth": (nn.SmoothL1Loss(), ()),
    "hinge": (hinge, ()),
    "divergence": (nn.KLDivLoss(reduction="batchmean"), (nn.LogSoftmax(1),)),
}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_limits_are_those_of_training(name, norm):
    loss, last = LOSSES[name]
    model = network(norm, *last)
    advice = ns.max_learning_rate(model, loss, digits(), effort="thorough", objective="half_limit")
    truth = onset(model, loss, advice.growth_limit, advice.limit / 8)
    assert 1 / 1.5 < advice.limit / truth < 1.5
    assert 1 / 3 < advice.predicted / truth < 3
    assert advice.bound < 1.5 * truth
    is_calibrated = isinstance(loss, nn.CrossEntropyLoss | nn.MSELoss)
    assert ("are calibrated on" in advice.explanation) is not is_calibrated


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.BCEWithLogitsLoss, nn.MSELoss])
def test_sum_over_samples_is_predicted_on_whole_batches(loss):
    mean, total = loss(), loss(reduction="sum")
    inputs, targets = next(iter(digits()))
    factor = (total(network()(inputs), targets) / mean(network()(inputs), targets)).item()
    single, many = (
        ns.max_learning_rate(network(), each, digits(), verify=False) for each in (mean, total)
    )
    assert many.bound * factor == pytest.approx(single.bound, rel=0.05)
    assert "on 32 samples" in single.prediction.reason
    assert "on 128 samples" in many.prediction.reason


def test_sum_of_a_whole_loss_is_predicted_on_whole_batches():
    total = ns.whole_loss(lambda model, batch: own_sum(model(batch[0]), batch[1]))
    found = ns.max_learning_rate(network(), total, digits(), verify=False)
    same = ns.max_learning_rate(network(), own_sum, digits(), verify=False)
    assert "128 samples" in found.prediction.reason
    assert found.predicted == pytest.approx(same.predicted, rel=0.5)


def test_log_likelihood_has_the_curvature_of_its_hessian():
    inputs, targets = next(iter(digits()))
    labels, model = targets.argmax(1), network(False, nn.LogSoftmax(1)).double()
    problem = Problem(model, nn.NLLLoss(), (inputs.double(), labels))
    found = measure_curvature(problem, [problem.data], UpdateRule("SGD"))
    hessian = ns.curvature.dense(model, nn.NLLLoss(), problem.data, "hessian")
    assert found.kind == "hessian"
    assert found.values[0] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=0.02)


def test_loss_that_is_linear_in_the_parameters_has_no_bound():
    with pytest.raises(StateError, match="not linear in them"):
        ns.max_learning_rate(nn.Linear(64, 10), nn.L1Loss(), digits())


def test_bounded_loss_is_said_to_have_no_limit():
    def cosine(output, target):
        return 1 - functional.cosine_similarity(output, target).mean()

    advice = ns.max_learning_rate(network(), cosine, digits())
    assert math.isinf(advice.verified[1])
    assert "prefer a rate near the curvature bound" in advice.explanation
