import copy

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, quadratic, small_network

from normscope.curvature import dense
from normscope.curvature.problem import Problem, whole_loss
from normscope.learning_rate.steepest import steepest_curvature


def largest(model, batch, kind="ggn"):
    matrix = dense(model, "cross_entropy", batch, kind=kind, mode="train")
    return float(torch.linalg.eigvalsh(matrix.double()).amax())


def halves():
    inputs, targets = labelled()
    return [(inputs[:32], targets[:32]), (inputs[32:], targets[32:])]


def test_values_are_those_of_each_batch_alone():
    model = small_network()
    found = steepest_curvature(Problem(model, "cross_entropy", halves()), halves())
    assert found.values == pytest.approx([largest(model, batch) for batch in halves()], rel=0.02)
    assert found.converged
    assert found.binding >= max(found.values)


def test_value_ahead_is_that_of_the_moved_model():
    model, (batch, _) = small_network(), halves()
    found = steepest_curvature(Problem(model, "cross_entropy", [batch]), [batch])
    moved = copy.deepcopy(model).train()
    loss = torch.nn.functional.cross_entropy(moved(batch[0]), batch[1])
    loss.backward()
    squared = sum(float(p.grad.square().sum()) for p in moved.parameters())
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter -= loss.item() / squared * parameter.grad
    assert found.ahead == pytest.approx(largest(moved, batch), rel=0.02)


def test_quadratic_is_as_steep_ahead_as_here():
    problem = quadratic()
    found = steepest_curvature(problem, [problem.data])
    assert found.values == pytest.approx([4.0])
    assert found.ahead == pytest.approx(4.0)
    assert found.sharpening == pytest.approx(1.0)


def test_shares_are_those_of_the_steepest_direction():
    model, (batch, _) = small_network(), halves()
    found = steepest_curvature(Problem(model, "cross_entropy", [batch]), [batch])
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
    found = steepest_curvature(Problem(model, loss, [batch]), [batch])
    assert found.kind == "hessian"
    assert found.values == pytest.approx([largest(model, batch, "hessian")], rel=0.02)


def test_loss_that_is_not_positive_has_nothing_ahead():
    model, (batch, _) = small_network(), halves()

    def loss(output, target):
        return torch.nn.functional.cross_entropy(output, target) - 10

    assert steepest_curvature(Problem(model, loss, [batch]), [batch]).ahead is None
