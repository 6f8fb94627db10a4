"""Adam and similar optimizers: the recommended rate trains, and the steps keep to their caps."""

import math
import statistics
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import Adam, AdamW, NAdam, RAdam
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, OneCycleLR, StepLR

from normscope.learning_rate import max_learning_rate
from normscope.learning_rate.around_step import GroupRates, setup_notes
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.thresholds import CHOICE_DIVISOR, EFFORTS
from normscope.problem import Problem

ADAMW = partial(AdamW, weight_decay=0.05)
LONG = partial(CosineAnnealingLR, T_max=4000)


def network(seed):
    """A small convolutional network with BatchNorm."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, 10)),
    )


def templates(seed):
    """Ten random templates with noise, one for each class."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, 3, 8, 8, generator=generator)
    labels = torch.randint(10, (640,), generator=generator)
    return centres[labels] + 2 * torch.randn(640, 3, 8, 8, generator=generator), labels


def final_loss(seed, rate, steps=50):
    """Train in a plain loop; return the mean of the last ten losses."""
    model, (inputs, labels) = network(seed), templates(seed)
    optimizer = ADAMW(model.parameters(), lr=rate)
    generator, losses = torch.Generator().manual_seed(seed), []
    while len(losses) < steps:
        for rows in torch.randperm(len(inputs), generator=generator).split(64):
            loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return statistics.fmean(losses[:steps][-10:])


def advise(optimizer=ADAMW, seed=0, **options):
    data = templates(seed)
    return max_learning_rate(
        network(seed), "cross_entropy", data, optimizer=optimizer, batch_size=64, **options
    )


def steps_of(advice):
    return advice.verification.steps + (0 if advice.choice is None else advice.choice.spent)


def test_recommended_rate_with_a_schedule_trains_as_the_best_of_a_ladder():
    found = advise(scheduler=LONG)
    losses = {rate: final_loss(0, rate) for rate in (0.01, 0.03, 0.1)}
    excess = final_loss(0, found.recommended) - min(losses.values())
    assert excess < 0.05 * math.log(10)
    assert excess < final_loss(0, 0.288) - min(losses.values())
    assert found.predicted is not None
    assert steps_of(found) <= EFFORTS["default"].total_steps


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [
        (ADAMW, LONG),
        (ADAMW, partial(LinearLR, start_factor=0.1, total_iters=50)),
        (NAdam, LONG),
        (RAdam, None),
    ],
)
def test_quick_recommends_a_twentieth_of_the_guess_within_its_steps(optimizer, scheduler):
    found = advise(optimizer, effort="quick", scheduler=scheduler)
    assert steps_of(found) <= EFFORTS["quick"].limit_steps
    assert found.recommended <= min(found.guess, found.limit) / CHOICE_DIVISOR * (1 + 1e-9)
    assert found.has_second_moment


def test_schedule_that_is_constant_in_a_run_leaves_the_prediction_as_it_is():
    plain, scheduled = advise(effort="quick"), advise(effort="quick", scheduler=LONG)
    assert scheduled.predicted == pytest.approx(plain.predicted)
    assert scheduled.recommended == pytest.approx(plain.recommended)


@pytest.mark.parametrize(
    ("scheduler", "turns"),
    [
        (partial(CosineAnnealingLR, T_max=20), True),
        (partial(StepLR, step_size=30), True),  # a tenth, three times
        (partial(OneCycleLR, max_lr=0.1, total_steps=60), True),
        (LONG, False),
        (partial(LinearLR, start_factor=0.1, total_iters=10), False),
        (partial(ConstantLR, factor=0.5, total_iters=30), False),
        (partial(OneCycleLR, max_lr=0.1, total_steps=2000), False),
    ],
)
def test_note_says_that_a_schedule_ends_within_a_run(scheduler, turns):
    problem = Problem(network(0), "cross_entropy", templates(0))
    setup = TrainingSetup(problem, Adam, 64, 0, scheduler=scheduler)
    notes = setup_notes(setup, GroupRates.of(setup, Adam(problem.model.parameters())))
    assert turns == any("not in epochs" in note for note in notes)
