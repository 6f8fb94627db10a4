from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from normscope.curvature import dense, operator
from normscope.errors import InputError
from normscope.learning_rate.bound import preconditioned_eigenvalue
from normscope.learning_rate.update_rule import (
    Preconditioner,
    RuleSteps,
    UpdateRule,
    preconditioner_of,
    rule_of,
)
from normscope.problem import parameter_layout


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


def test_groups_with_several_learning_rates_have_one_rule():
    groups = [{"params": weights(), "lr": 0.1}, {"params": weights(), "lr": 0.2}]
    assert rule_of(SGD(groups, lr=0.1, momentum=0.9)) == UpdateRule("SGD", momentum=0.9)


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
def test_groups_that_differ_in_their_rule_have_no_known_one(kind, name, values):
    optimizer = kind([{"params": weights()}, {"params": weights()}], lr=0.1)
    for group, value in zip(optimizer.param_groups, values, strict=True):
        group[name] = value
    rule = rule_of(optimizer)
    assert f"differ in '{name}'" in rule.unknown
    assert not rule.is_exact


def test_rule_of_another_class_is_unknown():
    assert "Adagrad is not known" in rule_of(Adagrad(weights())).unknown
    assert rule_of(Adam(weights())).unknown is None


def test_maximizing_optimizers_are_refused():
    with pytest.raises(InputError, match="maximize=True"):
        rule_of(SGD(weights(), lr=0.1, maximize=True))
    groups = [{"params": weights(), "maximize": each} for each in (False, True)]
    with pytest.raises(InputError, match="maximize=True"):
        rule_of(SGD(groups, lr=0.1))


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


def made(model, optimizer, gradients):
    parameters = dict(model.named_parameters())
    return preconditioner_of(
        optimizer, rule_of(optimizer), parameters, parameter_layout(model), gradients
    )


def test_sgd_divides_by_nothing():
    model = small_network()
    assert made(model, SGD(model.parameters(), lr=0.1), []) is None


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_divisor_of_a_stepped_optimizer_is_that_of_its_state(kind):
    model, (inputs, targets) = small_network(), labelled()
    optimizer = kind(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    found = made(model, optimizer, [])
    state = optimizer.state[model[3].weight]
    moment = state["exp_avg_sq"] / (1 - 0.999**3) if kind is Adam else state["square_avg"]
    place = parameter_layout(model).slices["3.weight"]
    assert found.is_given
    assert torch.allclose(found.scale[place], moment.sqrt().flatten() + 1e-8)


def test_divisor_of_amsgrad_is_the_largest_mean_so_far():
    model, (inputs, targets) = small_network(), labelled()
    optimizer = Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.5), amsgrad=True)
    for factor in (5.0, 1.0, 1.0):
        optimizer.zero_grad()
        (factor * nn.functional.cross_entropy(model(inputs), targets)).backward()
        optimizer.step()
    state = optimizer.state[model[3].weight]
    assert (state["max_exp_avg_sq"] > 1.5 * state["exp_avg_sq"]).any()
    place = parameter_layout(model).slices["3.weight"]
    expected = (state["max_exp_avg_sq"] / (1 - 0.5**3)).sqrt().flatten() + 1e-8
    assert torch.allclose(made(model, optimizer, []).scale[place], expected)


def test_divisor_of_a_centered_rmsprop_is_the_deviation():
    model = small_network()
    optimizer = RMSprop(model.parameters(), lr=1e-3, alpha=0.5, centered=True)
    for gradient in (2.0, 1.0):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()
    # means of 0, 0, 2, 1 with weights that halve: 1 of the gradient, 1.5 of its square
    assert torch.allclose(made(model, optimizer, []).scale, torch.tensor(0.5**0.5))


def test_deviation_below_zero_by_rounding_is_none():
    model = small_network()
    optimizer = RMSprop(model.parameters(), lr=1e-3, centered=True)
    for parameter in model.parameters():
        mean = torch.full_like(parameter, 1.0)
        optimizer.state[parameter] = {"square_avg": 1.25 * mean, "grad_avg": mean}
    rounded = optimizer.state[model[3].weight]
    rounded["square_avg"] = torch.ones_like(rounded["grad_avg"]) - 1e-7
    found = made(model, optimizer, []).scale
    place = parameter_layout(model).slices["3.weight"]
    assert torch.allclose(found[place], torch.tensor(0.5e-6))  # the floor, and no root of -1e-7
    assert torch.allclose(found[place.stop :], torch.tensor(0.5))


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_decay_of_each_group_is_divided_like_the_gradient(kind):
    model = small_network().double()
    layout = parameter_layout(model)
    groups = [
        {"params": [model[0].weight], "weight_decay": 50.0},
        {"params": [each for each in model.parameters() if each is not model[0].weight]},
    ]
    gradient = torch.zeros(layout.size, dtype=torch.float64)
    gradient[5:] = 3.0  # of the first five the loss knows nothing
    found = made(model, kind(groups, eps=1e-8), [gradient])
    place = layout.slices["0.weight"]
    whole = gradient[place] + 50 * model[0].weight.detach().flatten()
    assert torch.allclose(found.scale[place], whole.abs() + 1e-8)
    assert torch.equal(
        found.decay[place], torch.tensor([0.0] * 5 + [50.0] * 35, dtype=torch.float64)
    )
    assert found.decay.count_nonzero() == 35
    matrix = dense(model, "cross_entropy", labelled(), kind="ggn", mode="train")
    given = operator(model, "cross_entropy", labelled(), kind="ggn")
    root = found.scale.sqrt()
    exact = torch.linalg.eigvalsh((matrix + found.decay.diag()) / root / root.unsqueeze(1)).amax()
    value = float(preconditioned_eigenvalue(given, found, 1e-6).values[0])
    assert value == pytest.approx(float(exact), rel=1e-5)
    bare = float(preconditioned_eigenvalue(given, replace(found, decay=None), 1e-6).values[0])
    assert bare < 0.99 * value


def test_decoupled_and_absent_decay_divide_nothing():
    model = small_network()
    gradients = [torch.ones(parameter_layout(model).size)]
    for optimizer in (AdamW(model.parameters()), Adam(model.parameters())):
        assert made(model, optimizer, gradients).decay is None


def test_divisor_without_state_is_estimated_from_gradients():
    model = small_network()
    size = parameter_layout(model).size
    found = made(
        model, Adam(model.parameters()), [torch.full((size,), 3.0), torch.full((size,), 4.0)]
    )
    assert not found.is_given
    assert torch.allclose(found.scale, torch.full((size,), 12.5**0.5))


def test_eigenvalue_is_that_of_the_scaled_dense_matrix():
    model, batch = small_network().double(), labelled()
    matrix = dense(model, "cross_entropy", batch, kind="ggn", mode="train")
    scale = torch.rand(len(matrix), generator=torch.Generator().manual_seed(0)).double() + 0.1
    found = preconditioned_eigenvalue(
        operator(model, "cross_entropy", batch, kind="ggn"), Preconditioner(scale, True), 1e-6
    )
    root = scale.sqrt()
    exact = torch.linalg.eigvalsh(matrix / root / root.unsqueeze(1)).amax()
    assert float(found.values[0]) == pytest.approx(float(exact), rel=1e-5)
    assert found.converged
    vector = found.vectors[:, 0]
    residual = matrix @ (vector / root) / root - found.values[0] * vector
    assert float(found.residuals[0]) == pytest.approx(float(residual.norm() / exact), rel=1e-3)
