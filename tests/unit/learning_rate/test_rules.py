import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from normscope.errors import ArgumentTypeError, InputError
from normscope.learning_rate.update_rule import UpdateRule, rule_of


def weights():
    return [nn.Parameter(torch.zeros(2))]


def spectral_radius(rate, curvature, momentum, nesterov, dampening):
    """Of torch's own SGD on a one-dimensional quadratic, read off two unit vectors of its state."""
    columns = []
    for position, velocity in ((1.0, 0.0), (0.0, 1.0)):
        weight = nn.Parameter(torch.tensor([position], dtype=torch.float64))
        options = {"momentum": momentum, "nesterov": nesterov, "dampening": dampening}
        optimizer = SGD([weight], lr=rate, **options)
        optimizer.state[weight]["momentum_buffer"] = torch.tensor([velocity], dtype=torch.float64)
        weight.grad = curvature * weight.detach().clone()
        optimizer.step()
        columns.append([weight.item(), optimizer.state[weight]["momentum_buffer"].item()])
    return np.abs(np.linalg.eigvals(np.array(columns).T)).max()


@pytest.mark.parametrize("momentum", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("nesterov", "dampening"), [(False, 0.0), (True, 0.0), (False, 0.5)])
def test_bound_is_where_the_spectral_radius_of_sgd_passes_one(momentum, nesterov, dampening):
    rule = UpdateRule("SGD", momentum, nesterov, dampening)
    bound = rule.largest_stable_rate(3.0)
    below, above = (
        spectral_radius(factor * bound, 3.0, momentum, nesterov, dampening)
        for factor in (1 - 1e-6, 1 + 1e-6)
    )
    assert below < 1 < above


def test_weight_decay_adds_to_the_curvature():
    assert UpdateRule("SGD", weight_decay=1.0).largest_stable_rate(3.0) == 0.5


def radius_of_adamw(rate, curvature, mean, decay):
    """Of torch's own AdamW with a divisor held at one, read off two unit vectors of its state."""
    columns = []
    for position, first in ((1.0, 0.0), (0.0, 1.0)):
        weight = nn.Parameter(torch.tensor([position], dtype=torch.float64))
        # with this second decay the state stays at one, whatever the gradient
        optimizer = AdamW([weight], lr=rate, betas=(mean, 1 - 1e-15), weight_decay=decay, eps=0.0)
        optimizer.state[weight] = {
            "step": torch.tensor(1e18),  # no correction of the means is left
            "exp_avg": torch.tensor([first], dtype=torch.float64),
            "exp_avg_sq": torch.ones(1, dtype=torch.float64),
        }
        weight.grad = curvature * weight.detach().clone()
        optimizer.step()
        columns.append([weight.item(), optimizer.state[weight]["exp_avg"].item()])
    return np.abs(np.linalg.eigvals(np.array(columns).T)).max()


@pytest.mark.parametrize("decay", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("mean", [0.5, 0.9])
def test_bound_is_where_the_spectral_radius_of_adamw_passes_one(mean, decay):
    optimizer = AdamW(weights(), betas=(mean, 0.999), weight_decay=decay)
    bound = rule_of(optimizer).largest_stable_rate(3.0)
    assert bound == pytest.approx(2 * (1 + mean) / ((1 - mean) * 3.0 + (1 + mean) * decay))
    below, above = (
        radius_of_adamw(factor * bound, 3.0, mean, decay) for factor in (1 - 1e-4, 1 + 1e-4)
    )
    assert below < 1 < above


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_decay_in_a_divided_gradient_is_part_of_the_curvature_given(kind):
    plain, decayed = (rule_of(kind(weights(), weight_decay=decay)) for decay in (0.0, 1.0))
    assert decayed.weight_decay == 1.0
    assert decayed.largest_stable_rate(3.0) == plain.largest_stable_rate(3.0)


def test_adamw_is_decoupled_also_where_its_groups_do_not_say_so():
    optimizer = AdamW(weights())
    for group in optimizer.param_groups:
        group.pop("decoupled_weight_decay", None)  # torch 2.6
    assert rule_of(optimizer).decoupled


def test_amsgrad_and_centered_are_read_off_the_optimizer():
    assert [rule_of(Adam(weights(), amsgrad=each)).amsgrad for each in (True, False)] == [
        True,
        False,
    ]
    assert [rule_of(RMSprop(weights(), centered=each)).centered for each in (True, False)] == [
        True,
        False,
    ]


@pytest.mark.parametrize("curvature", [0.0, -1.0])
def test_loss_that_curves_nowhere_upwards_has_no_bound(curvature):
    assert UpdateRule("SGD").largest_stable_rate(curvature) == float("inf")


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (
            SGD(weights(), lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
            UpdateRule("SGD", momentum=0.9, dampening=0.3, weight_decay=0.1),
        ),
        (
            SGD(weights(), lr=0.1, dampening=0.3),  # without a momentum it does nothing
            UpdateRule("SGD"),
        ),
        (
            Adam(weights(), betas=(0.8, 0.9), eps=1e-3),
            UpdateRule("Adam", 0.8, dampening=0.8, second_moment=0.9, epsilon=1e-3, corrected=True),
        ),
        (
            RMSprop(weights(), momentum=0.5, alpha=0.9, eps=1e-4, centered=True),
            UpdateRule("RMSprop", 0.5, second_moment=0.9, epsilon=1e-4, centered=True),
        ),
    ],
)
def test_every_part_of_the_rule_is_read_off_the_optimizer(optimizer, expected):
    assert rule_of(optimizer) == expected


def test_adam_with_decoupled_decay_is_decoupled():
    optimizer = Adam(weights())
    optimizer.param_groups[0]["decoupled_weight_decay"] = True  # an argument from torch 2.7 on
    assert rule_of(optimizer).decoupled


def test_sgd_is_read_off_the_optimizer():
    optimizer = SGD(weights(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    rule = rule_of(optimizer)
    assert (rule.name, rule.momentum, rule.nesterov, rule.weight_decay) == ("SGD", 0.9, True, 1e-4)
    assert rule.is_exact


def test_adam_bound_is_that_of_a_running_mean():
    rule = rule_of(Adam(weights(), betas=(0.9, 0.999)))
    assert rule.largest_stable_rate(1.0) == pytest.approx(38.0)  # 2 (1 + 0.9) / (1 - 0.9)
    assert not rule.is_exact
    assert not rule.decoupled
    assert rule_of(AdamW(weights())).decoupled
    assert rule_of(RMSprop(weights(), alpha=0.9, momentum=0.5)).second_moment == 0.9


def test_largest_weight_decay_of_the_groups_counts():
    first, second = weights(), weights()
    groups = [{"params": first, "weight_decay": 0.1}, {"params": second, "weight_decay": 0.0}]
    assert rule_of(SGD(groups, lr=0.1)).weight_decay == 0.1


def test_groups_with_several_learning_rates_are_refused():
    groups = [{"params": weights(), "lr": 0.1}, {"params": weights(), "lr": 0.2}]
    with pytest.raises(InputError, match=r"differ in 'lr' \(0.1, 0.2\)"):
        rule_of(SGD(groups, lr=0.1))


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (SGD, "momentum", (0.5, 0.9)),
        (SGD, "nesterov", (False, True)),
        (SGD, "dampening", (0.0, 0.5)),
        (Adam, "betas", ((0.9, 0.99), (0.9, 0.999))),
        (Adam, "eps", (1e-8, 1e-3)),
        (Adam, "amsgrad", (False, True)),
        (Adam, "decoupled_weight_decay", (False, True)),
        (RMSprop, "alpha", (0.9, 0.99)),
        (RMSprop, "centered", (False, True)),
    ],
)
def test_groups_that_differ_in_their_rule_are_refused(kind, name, values):
    optimizer = kind([{"params": weights()}, {"params": weights()}], lr=0.1)
    for group, value in zip(optimizer.param_groups, values, strict=True):
        group[name] = value
    with pytest.raises(InputError, match=f"differ in '{name}'"):
        rule_of(optimizer)


def test_unknown_and_maximizing_optimizers_are_refused():
    with pytest.raises(ArgumentTypeError, match="got Adagrad"):
        rule_of(Adagrad(weights()))
    with pytest.raises(InputError, match="maximize=True"):
        rule_of(SGD(weights(), lr=0.1, maximize=True))
    groups = [{"params": weights(), "maximize": each} for each in (False, True)]
    with pytest.raises(InputError, match="maximize=True"):
        rule_of(SGD(groups, lr=0.1))
