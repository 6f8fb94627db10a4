"""Steps of the rules against torch's own optimizers."""

import pytest
import torch

from normscope.learning_rate.update_rule import RuleSteps, rule_of

CURVATURES = torch.tensor([1.0, 4.0, 0.3], dtype=torch.float64)
OPTIMIZERS = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"weight_decay": 0.1}),
    (torch.optim.Adam, {"amsgrad": True, "betas": (0.9, 0.3)}),
    (torch.optim.Adam, {"betas": (0.0, 0.9)}),
    (torch.optim.AdamW, {"weight_decay": 0.5}),
    (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
]


def begin():
    return torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def by_torch(kind, options, rate, steps=6):
    value = begin().requires_grad_()
    optimizer = kind([value], lr=rate, **options)
    for _ in range(steps):
        value.grad = CURVATURES * value.detach()
        optimizer.step()
    return value.detach(), rule_of(optimizer)


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_steps_are_those_of_torch(kind, options):
    expected, rule = by_torch(kind, options, 0.1)
    value, updates = begin(), RuleSteps(rule)
    for _ in range(6):
        updates.apply(value, CURVATURES * value, 0.1)
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS)
def test_trainings_side_by_side_are_apart_and_some_may_end(kind, options):
    rates = [0.05, 0.1, 0.2]
    _, rule = by_torch(kind, options, 0.1)
    value, updates = begin().repeat(3, 1), RuleSteps(rule)
    column = torch.tensor(rates, dtype=torch.float64).view(-1, 1)
    for _ in range(3):
        updates.apply(value, CURVATURES * value, column)
    kept = torch.tensor([True, False, True])
    value, column = value[kept], column[kept]
    updates.keep(kept)
    for _ in range(3):
        updates.apply(value, CURVATURES * value, column)
    for found, rate in zip(value, (0.05, 0.2), strict=True):
        torch.testing.assert_close(found, by_torch(kind, options, rate)[0])


def test_gradient_is_not_overwritten():
    for kind, options in OPTIMIZERS:
        gradient = CURVATURES.clone()
        _, rule = by_torch(kind, options, 0.1)
        updates, value = RuleSteps(rule), begin()
        updates.apply(value, gradient, 0.1)
        updates.apply(value, gradient, 0.1)
        assert torch.equal(gradient, CURVATURES)
