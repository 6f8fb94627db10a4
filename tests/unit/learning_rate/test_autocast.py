"""Trainings inside one autocast, whose cache of cast weights must not outlive a step."""

import torch
from torch import nn
from torch.nn import functional

import normscope as ns


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


DATA = (torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3)


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def test_limit_inside_autocast_is_that_of_training_with_autocast_in_each_step():
    class Cast(nn.Sequential):
        def forward(self, x):
            with autocast():
                return super().forward(x)

    each_step = ns.max_learning_rate(Cast(*model()), "cross_entropy", DATA)
    with autocast():
        around = ns.max_learning_rate(model(), "cross_entropy", DATA)
    assert 1 / 1.1 < around.limit / each_step.limit < 1.1


def test_model_keeps_its_outputs_inside_autocast():
    measured = model()
    with autocast():
        ns.max_learning_rate(measured, "cross_entropy", DATA)
        assert torch.equal(measured(DATA[0]), model()(DATA[0]))


def test_fit_inside_autocast_trains_as_with_autocast_in_each_step():
    around, each_step = model(), model()
    with autocast():
        run = ns.fit(ns.Problem(around, "cross_entropy", DATA), ns.sgd(0.5), 20)
    optimizer = torch.optim.SGD(each_step.parameters(), lr=0.5)
    for expected in run.losses:
        optimizer.zero_grad()
        with autocast():
            loss = functional.cross_entropy(each_step(DATA[0]), DATA[1])
        assert loss.item() == expected
        loss.backward()
        optimizer.step()
