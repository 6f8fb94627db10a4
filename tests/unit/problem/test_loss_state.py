"""A loss with a memory of its own is left as it was, and is the same function each time."""

import pytest
import torch
from torch import nn

from normscope import max_learning_rate
from normscope.curvature import top_eigenvalue, trace
from normscope.problem import loss_modules


class Remembering(nn.Module):
    """Cross-entropy relative to a running mean of itself, which counts its calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))
        self.calls, self.seen = 0, []

    def forward(self, output, target):
        value = nn.functional.cross_entropy(output, target)
        self.mean.lerp_(value.detach(), 0.1)
        self.calls += 1
        self.seen.append(self.calls)
        return value / self.mean


def model_and_data():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return model, (torch.randn(48, 4), torch.randint(3, (48,)))


@pytest.mark.parametrize(
    "measure",
    [
        lambda model, loss, data: top_eigenvalue(model, loss, data, kind="hessian"),
        lambda model, loss, data: top_eigenvalue(model, loss, data, kind="ggn"),
        lambda model, loss, data: trace(model, loss, data, kind="hessian"),
        lambda model, loss, data: max_learning_rate(model, loss, data, batch_size=16),
        lambda model, loss, data: max_learning_rate(model, loss, data, batch_size=16, verify=False),
    ],
    ids=["hessian", "ggn", "trace", "advice", "prediction"],
)
def test_loss_with_a_memory_is_left_as_it_was(measure):
    model, data = model_and_data()
    loss = Remembering()
    buffer = loss.mean
    measure(model, loss, data)
    assert loss.mean is buffer
    assert loss.mean.item() == 1.0
    assert (loss.calls, loss.seen) == (0, [])


def test_every_run_begins_with_the_same_loss():
    model, data = model_and_data()
    first = max_learning_rate(model, Remembering(), data, batch_size=16)
    used = Remembering()
    max_learning_rate(model, used, data, batch_size=16)
    again = max_learning_rate(model, used, data, batch_size=16)
    assert again.verification.trials == first.verification.trials


def test_modules_that_a_function_names_are_found():
    loss = Remembering()
    assert loss_modules(lambda output, target: loss(output, target), nn.Linear(1, 1)) == [loss]
