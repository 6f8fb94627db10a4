"""Whether the advice says that weight decay lets nothing be learned at the recommended rate."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.learning_rate.learning_check import LearningCheck, check_learning
from normscope.learning_rate.setup import TrainingSetup
from normscope.problem.problem import Problem
from normscope.training import sgd, train

CHECK = LearningCheck(0.1, 200, first=3.0, early=1.0, late=0.9, kept=0.5, constant=0.4)


@functools.cache
def digits():
    return ns.data.load("digits").train


def network():
    """A network whose first loss, 3.6, is far above that of a constant output, 2.3."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    with torch.no_grad():
        model[-1].weight *= 8
    return model


def losses_at(rate, steps, **options):
    problem = Problem(network(), "cross_entropy", digits())
    run = train(problem, sgd(rate, **options), steps, batch_size=64, seed=3)
    return [step.loss for step in run]


@pytest.mark.parametrize("objective", ["fastest", "half_limit"])
def test_rate_at_which_only_weight_decay_lowers_the_loss_is_said_to_learn_nothing(objective):
    options = {"momentum": 0.9, "weight_decay": 1.0}
    found = ns.max_learning_rate(
        network(), "cross_entropy", digits(), batch_size=64, objective=objective, **options
    )
    assert "but nothing is learned there in 200 steps" in str(found).splitlines()[0]
    assert any("Nothing is learned at the recommended rate" in note for note in found.notes)
    assert found.to_dict()["check"]["learned_nothing"]
    losses = losses_at(found.recommended, 200, **options)
    assert losses[0] > 2.6  # so that the loss falls
    assert min(losses[-20:]) > 0.97 * 2.3  # log 10 is that of a constant output


def test_rate_that_learns_has_no_check_without_weight_decay():
    found = ns.max_learning_rate(network(), "cross_entropy", digits(), batch_size=64)
    assert found.check is None
    assert found.choice.kept > 0.8


@pytest.mark.parametrize("loss", ["cross_entropy", "whole"])
def test_check_is_a_training_that_leaves_the_model(loss):
    model = network()
    before = [each.clone() for each in model.parameters()]
    entropy = nn.functional.cross_entropy
    whole = ns.whole_loss(lambda net, batch: entropy(net(batch[0]), batch[1]))
    problem = Problem(model, whole if loss == "whole" else loss, digits())
    setup = TrainingSetup(problem, sgd(1.0), 64, seed=3)
    found = check_learning(setup, 0.01)
    losses = losses_at(0.01, 200)
    assert found.first == losses[0]
    assert found.early == pytest.approx(sum(losses[50:100]) / 50)
    assert found.late == pytest.approx(sum(losses[150:]) / 50)
    assert (found.constant is None) == (loss == "whole")
    assert not found.learned_nothing
    assert all(map(torch.equal, before, model.parameters()))
    decayed = check_learning(setup, 0.05, weight_decay=3.0)
    assert decayed.learned_nothing
    assert decayed.kept < 0.01


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, None),
        ({"constant": 0.98}, "no better than a constant"),
        ({"late": 1.2}, "rises again, from 1 to 1.2 within 200 steps"),
        ({"constant": None}, None),
        ({"constant": None, "late": 2.95}, "no better than a constant"),
        ({"constant": None, "kept": 0.05}, "no better than a constant"),
        ({"constant": float("nan")}, "no better than a constant"),
    ],
)
def test_notes_follow_from_the_losses(values, told):
    notes = replace(CHECK, **values).notes
    assert len(notes) == (told is not None)
    assert told is None or told in notes[0]
    assert told is None or "use less weight decay" in notes[0]
