"""What the report of a scope says of the training that it watched."""

import pytest
import torch
from torch import nn

from normscope.curvature import whole_loss
from normscope.probes import Scope
from normscope.probes.described import scope_settings


def scope_on(loss="squared_error", optimizer=None, **options):
    model = nn.Linear(2, 1)
    made = optimizer(model) if optimizer else None
    return Scope(model, loss, made, probes="gradient_norms", **options)


def described(*what, **options):
    scope = scope_on(*what, **options)
    return scope_settings(scope._subject, scope._schedule)


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
