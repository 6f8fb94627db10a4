"""What the report of a scope says of the training that it watched."""

import numpy as np
import pytest
import torch
from torch import nn

from normscope.probes import Scope
from normscope.probes.observed import _describe_optimizer
from normscope.problem import whole_loss


def scope_on(loss="squared_error", optimizer=None, **options):
    model = nn.Linear(2, 1)
    made = optimizer(model) if optimizer else None
    return Scope(model, loss, made, probes="gradient_norms", **options)


def described(*what, **options):
    return scope_on(*what, **options)._settings()


def test_report_names_loss_optimizer_and_schedule(tmp_path):
    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=False)

    scope = scope_on(nn.MSELoss(), sgd, every=7)
    scope.step(torch.ones(4, 2), torch.zeros(4, 1))
    page = scope.report(tmp_path / "scope.html").read_text(encoding="utf-8")
    assert "<dt>loss</dt><dd>MSELoss</dd>" in page
    assert "<dt>optimizer</dt><dd>SGD, lr 0.2, momentum 0.9</dd>" in page
    assert "<dt>every</dt><dd>7</dd>" in page


def test_what_differs_by_parameter_group_is_told():
    def adam(model):
        groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}]
        return torch.optim.Adam(groups, lr=torch.tensor(0.25))

    found = described(optimizer=adam)
    assert found["loss"] == "squared_error"
    assert found["optimizer"] == "Adam, lr 0.25 or 0.5, betas (0.9, 0.999), eps 1e-08"


def sgd_with(rate, **settings):
    def sgd(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        optimizer.param_groups[0].update(settings)
        return optimizer

    return sgd


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        (sgd_with(0.0), "SGD, lr 0.0"),
        (sgd_with(0.0, momentum=0.9), "SGD, lr 0.0, momentum 0.9"),
        (sgd_with(0.1, scales=torch.ones(3)), "SGD, lr 0.1, scales [1.0, 1.0, 1.0]"),
        (sgd_with(0.1, scales=np.ones(2)), "SGD, lr 0.1, scales [1.0, 1.0]"),
        (sgd_with(0.1, scales=torch.ones(1)), "SGD, lr 0.1, scales 1.0"),
        (sgd_with(0.1, names=["a", "b"]), "SGD, lr 0.1, names ['a', 'b']"),
        (sgd_with(0.1, scales=torch.ones(1000)), "SGD, lr 0.1, scales of 1000 values"),
    ],
)
def test_rate_of_zero_and_vectors_are_told(optimizer, told):
    assert described(optimizer=optimizer)["optimizer"] == told


def test_optimizer_without_settings_is_its_name():
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

    assert _describe_optimizer(Plain([torch.ones(1, requires_grad=True)])) == "Plain"


def mean_of_outputs(model, batch):
    return model(batch[0]).mean()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"steps": [0, 3]}, {"steps": "2 given"}),
        ({"budget": 0.5}, {"budget": 0.5}),
        ({"learning_rate": 0.1}, {"learning_rate": 0.1, "every": 50}),
    ],
)
def test_other_schedules_and_rates_are_told(options, told):
    found = described(whole_loss(mean_of_outputs), **options)
    assert found == {"loss": "mean_of_outputs (whole loss)", **told}
