import copy

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, quadratic, small_network

from normscope.curvature import dense
from normscope.curvature.problem import Problem, whole_loss
from normscope.learning_rate.preconditioner import Preconditioner
from normscope.learning_rate.rules import UpdateRule, rule_of
from normscope.learning_rate.steepest import steepest_curvature

SGD_RULE = UpdateRule("SGD")


def largest(model, batch, kind="ggn"):
    matrix = dense(model, "cross_entropy", batch, kind=kind, mode="train")
    return float(torch.linalg.eigvalsh(matrix.double()).amax())


def halves():
    inputs, targets = labelled()
    return [(inputs[:32], targets[:32]), (inputs[32:], targets[32:])]


def test_values_are_those_of_each_batch_alone():
    model = small_network()
    found = steepest_curvature(Problem(model, "cross_entropy", halves()), halves(), SGD_RULE)
    assert found.values == pytest.approx([largest(model, batch) for batch in halves()], rel=0.02)
    assert found.converged
    assert found.binding >= max(found.values)


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
    found = steepest_curvature(Problem(model, "cross_entropy", batches), batches, rule)
    seen = list(found.values)
    for steps, value in zip((1, 4, 16), found.later, strict=True):
        moved = copy.deepcopy(model).train()
        rate = rule.largest_stable_rate(max(seen))
        stepping = torch.optim.SGD(moved.parameters(), lr=rate, **options)
        for number in range(steps):
            inputs, targets = batches[number % 2]
            stepping.zero_grad()
            torch.nn.functional.cross_entropy(moved(inputs), targets).backward()
            stepping.step()
        assert value == pytest.approx(largest(moved, batches[steps % 2]), rel=0.02)
        seen.append(value)
    assert found.binding == max(seen)


def test_steps_of_a_dividing_optimizer_are_divided():
    model, (batch, _) = small_network(), halves()
    problem = Problem(model, "cross_entropy", [batch])
    scale = torch.rand(sum(p.numel() for p in model.parameters())) + 0.5
    found = steepest_curvature(problem, [batch], SGD_RULE, Preconditioner(scale, is_given=True))
    moved = copy.deepcopy(model).train()
    torch.nn.functional.cross_entropy(moved(batch[0]), batch[1]).backward()
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
    found = steepest_curvature(problem, [problem.data], SGD_RULE)
    assert found.values == pytest.approx([4.0])
    assert found.later == pytest.approx((4.0, 4.0, 4.0))
    assert found.sharpening == pytest.approx(1.0)


def test_net_that_grows_steeper_at_once_is_bound_by_its_first_steps():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)).double()
    with torch.no_grad():
        model[1].weight *= 1e-2
    data = (torch.randn(16, 4).double(), 10 * torch.ones(16, 1).double())
    found = steepest_curvature(Problem(model, "squared_error", data), [data], SGD_RULE)
    assert found.sharpening > 2


def test_later_value_that_is_not_finite_is_left_out():
    model = torch.nn.Linear(2, 1)

    def loss(output, target):  # steep enough that its own bound is far too long a step
        return (output.mean() - 40).square() + torch.exp(50 * output.mean())

    batch = (torch.ones(4, 2), torch.zeros(4, 1))
    with torch.no_grad():
        model.weight.fill_(-0.25)
        model.bias.zero_()
    found = steepest_curvature(Problem(model, loss, [batch]), [batch], SGD_RULE)
    assert found.later == ()
    assert found.binding == max(found.values)


def test_shares_are_those_of_the_steepest_direction():
    model, (batch, _) = small_network(), halves()
    found = steepest_curvature(Problem(model, "cross_entropy", [batch]), [batch], SGD_RULE)
    matrix = dense(model, "cross_entropy", batch, kind="ggn", mode="train")
    vector = torch.linalg.eigh(matrix.double())[1][:, -1]
    sizes = [p.numel() for p in model.parameters()]
    parts = [float(piece.square().sum()) for piece in torch.split(vector, sizes)]
    assert found.shares["3"] == pytest.approx(sum(parts[-2:]), abs=0.03)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert list(found.shares.values()) == sorted(found.shares.values(), reverse=True)


def test_whole_loss_is_measured_by_its_hessian():
    model, (batch, _) = small_network(), halves()
    function = torch.nn.functional.cross_entropy
    loss = whole_loss(lambda net, given: function(net(given[0]), given[1]))
    found = steepest_curvature(Problem(model, loss, [batch]), [batch], SGD_RULE)
    assert found.kind == "hessian"
    assert found.values == pytest.approx([largest(model, batch, "hessian")], rel=0.02)
