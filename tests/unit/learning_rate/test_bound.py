import copy
import math

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, plateau, quadratic, small_network
from torch.nn.functional import cross_entropy

from normscope.curvature import dense
from normscope.learning_rate.bound import MeasuredCurvature, measure_curvature
from normscope.learning_rate.update_rule import Preconditioner, UpdateRule, rule_of
from normscope.problem import Problem, whole_loss

SGD_RULE = UpdateRule("SGD")


def largest(model, batch, kind="ggn"):
    matrix = dense(model, "cross_entropy", batch, kind=kind, mode="train")
    return float(torch.linalg.eigvalsh(matrix.double()).amax())


def halves():
    inputs, targets = labelled()
    return [(inputs[:32], targets[:32]), (inputs[32:], targets[32:])]


def test_values_are_those_of_each_batch_alone():
    model = small_network()
    found = measure_curvature(Problem(model, "cross_entropy", halves()), halves(), SGD_RULE)
    assert found.values == pytest.approx([largest(model, batch) for batch in halves()], rel=0.02)
    assert found.converged
    assert found.largest >= max(found.values)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.8, "dampening": 0.3},
        {"momentum": 0.7, "nesterov": True},
    ],
    ids=str,
)
def test_later_values_are_those_after_steps_of_torch(options):
    model, batches = small_network(), halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, **options)
    rule = rule_of(optimizer)
    found = measure_curvature(Problem(model, "cross_entropy", batches), batches, rule)
    seen, cap = list(found.values), math.inf
    for steps, value in zip((1, 4, 16), found.later, strict=True):
        rate = min(rule.largest_stable_rate(max(seen)), cap)
        moved = walked(model, batches, steps, rate, options)
        while moved is None:  # it broke the loss
            cap = rate = rate / 2
            moved = walked(model, batches, steps, rate, options)
        assert value == pytest.approx(largest(moved, batches[steps % 2]), rel=0.02)
        seen.append(value)
    assert found.largest == max(seen)
    assert found.stable_rate == pytest.approx(cap, rel=0.02)
    assert found.bound(rule) == min(rule.largest_stable_rate(found.largest), found.stable_rate)


def walked(model, batches, steps, rate, options):
    """The model after steps of torch's SGD; None if its loss broke on the way."""
    moved = copy.deepcopy(model).train()
    stepping = torch.optim.SGD(moved.parameters(), lr=rate, **options)
    for number in range(steps + 1):
        inputs, targets = batches[number % 2]
        loss = cross_entropy(moved(inputs), targets)
        if not loss <= 1.5 * cross_entropy(copy.deepcopy(model)(inputs), targets):
            return None
        if number < steps:
            stepping.zero_grad()
            loss.backward()
            stepping.step()
    return moved


def test_steps_of_a_dividing_optimizer_are_divided():
    model, (batch, _) = small_network(), halves()
    problem = Problem(model, "cross_entropy", [batch])
    scale = torch.rand(sum(p.numel() for p in model.parameters())) + 0.5
    found = measure_curvature(problem, [batch], SGD_RULE, Preconditioner(scale, is_given=True))
    moved = copy.deepcopy(model).train()
    cross_entropy(moved(batch[0]), batch[1]).backward()
    rate = SGD_RULE.largest_stable_rate(found.values[0])
    with torch.no_grad():
        for parameter, part in zip(
            moved.parameters(),
            scale.split([p.numel() for p in moved.parameters()]),
            strict=True,
        ):
            parameter -= rate * parameter.grad / part.view_as(parameter)
    matrix = dense(moved, "cross_entropy", batch, kind="ggn", mode="train").double()
    roots = scale.double().rsqrt()
    expected = torch.linalg.eigvalsh(roots[:, None] * matrix * roots).amax()
    assert found.later[0] == pytest.approx(float(expected), rel=0.02)


def test_quadratic_is_as_steep_later_as_here():
    problem = quadratic()
    found = measure_curvature(problem, [problem.data], SGD_RULE)
    assert found.values == pytest.approx([4.0])
    assert found.later == pytest.approx((4.0, 4.0, 4.0))


def test_net_that_grows_steeper_at_once_is_bound_by_its_first_steps():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)).double()
    with torch.no_grad():
        model[1].weight *= 1e-2
    data = (torch.randn(16, 4).double(), 10 * torch.ones(16, 1).double())
    found = measure_curvature(Problem(model, "squared_error", data), [data], SGD_RULE)
    assert found.largest > 2 * max(found.values)


def test_steps_that_leave_the_range_of_numbers_are_shortened():
    model = torch.nn.Linear(2, 1)

    def loss(output, target):  # steep enough that its own bound is far too long a step
        return (output.mean() - 40).square() + torch.exp(50 * output.mean())

    batch = (torch.ones(4, 2), torch.zeros(4, 1))
    with torch.no_grad():
        model.weight.fill_(-0.25)
        model.bias.zero_()
    found = measure_curvature(Problem(model, loss, [batch]), [batch], SGD_RULE)
    start = SGD_RULE.largest_stable_rate(max(found.values))
    assert found.stable_rate <= start / 2
    assert found.bound(SGD_RULE) <= found.stable_rate
    assert all(map(math.isfinite, found.later))


def test_walk_that_breaks_at_every_rate_is_given_up():
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)

    def loss(output, target):  # one kink upwards behind every step
        return 1 + output.mean().square() + 1e9 * (output.mean().abs() > 0) + 0.1 * output.mean()

    batch = (torch.ones(2, 1).double(), torch.zeros(2, 1).double())
    found = measure_curvature(Problem(model, loss, [batch]), [batch], SGD_RULE)
    assert found.later == ()
    assert found.stable_rate == pytest.approx(1.0 / 2**18)  # six halvings for each of three looks


def test_net_on_a_plateau_is_bound_by_what_waits_beyond():
    problem, events = plateau(0.15), []
    found = measure_curvature(problem, [problem.data], SGD_RULE, progress=events.append)
    assert found.values == pytest.approx([1.0], rel=1e-3)  # of the bias alone
    assert [str(each) for each in events] == [
        "curvature, batch 1 of 1",
        *(f"curvature, after {steps}" for steps in ("1 step", "4 steps", "16 steps")),
    ]
    assert found.starts_on_plateau
    assert found.beyond == max(found.later)
    # where the product of the four weights is 4, its curvature is 4 * (4 / sqrt 2)^2 = 32
    assert 16 < found.beyond < 64
    assert found.bound(SGD_RULE) <= 2 / found.beyond


def test_net_whose_loss_falls_begins_on_no_plateau():
    model = small_network()
    found = measure_curvature(Problem(model, "cross_entropy", halves()), halves(), SGD_RULE)
    assert found.beyond is None
    assert not found.starts_on_plateau


def test_plateau_that_is_no_steeper_beyond_is_none():
    flat = MeasuredCurvature((2.0,), (8.0,), {}, "ggn", True, 1.0, 0.1, beyond=8.0)
    steep = MeasuredCurvature((2.0,), (8.1,), {}, "ggn", True, 1.0, 0.1, beyond=8.1)
    assert not flat.starts_on_plateau
    assert steep.starts_on_plateau


def test_shares_are_those_of_the_steepest_direction():
    model, (batch, _) = small_network(), halves()
    found = measure_curvature(Problem(model, "cross_entropy", [batch]), [batch], SGD_RULE)
    matrix = dense(model, "cross_entropy", batch, kind="ggn", mode="train")
    vector = torch.linalg.eigh(matrix.double())[1][:, -1]
    sizes = [p.numel() for p in model.parameters()]
    parts = [float(piece.square().sum()) for piece in torch.split(vector, sizes)]
    assert found.shares["3"] == pytest.approx(sum(parts[-2:]), abs=0.03)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert list(found.shares.values()) == sorted(found.shares.values(), reverse=True)


def test_whole_loss_is_measured_by_its_hessian():
    model, (batch, _) = small_network(), halves()
    function = cross_entropy
    loss = whole_loss(lambda net, given: function(net(given[0]), given[1]))
    found = measure_curvature(Problem(model, loss, [batch]), [batch], SGD_RULE)
    assert found.kind == "hessian"
    assert found.values == pytest.approx([largest(model, batch, "hessian")], rel=0.02)
