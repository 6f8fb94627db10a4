"""Losses, attributes and hooks that refer to the model or to its parameters."""

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, quadratic, small_network
from torch import nn

from normscope import compare, max_learning_rate, whole_loss
from normscope.errors import StateError
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.stability import short_run
from normscope.problem import Problem, squared_error
from normscope.training import sgd

PENALTY = 50.0


def penalized(model):
    """The squared error with an L2 penalty on the model's parameters: curvature 4 + 2 * 50."""

    def loss(output, target):
        squares = sum(parameter.square().sum() for parameter in model.parameters())
        return squared_error(output, target) + PENALTY * squares

    return loss


def test_penalty_on_the_models_parameters_counts_in_the_verified_limit():
    problem = quadratic()
    found = max_learning_rate(
        problem.model, penalized(problem.model), problem.data, effort="thorough"
    )
    exact = 2 / (4 + 2 * PENALTY)
    assert found.verification.low < exact * 1.05
    assert found.limit == pytest.approx(exact, rel=0.1)
    assert found.curvature_bound <= exact * 1.05


def test_prediction_without_runs_counts_the_penalty():
    problem = quadratic()
    found = max_learning_rate(problem.model, penalized(problem.model), problem.data, verify=False)
    assert found.curvature.kind == "hessian"
    assert found.curvature.values[0] == pytest.approx(4 + 2 * PENALTY, rel=1e-3)
    exact = 2 / (4 + 2 * PENALTY)
    assert found.curvature_bound == pytest.approx(exact, rel=1e-3)
    assert exact / 2.5 < found.limit < exact * 2.5  # of a few trial runs


def test_penalty_and_its_whole_loss_are_answered_alike():
    one, other = small_network(), small_network()
    entropy = nn.functional.cross_entropy

    def whole(net, batch):
        squares = sum(parameter.square().sum() for parameter in net.parameters())
        return entropy(net(batch[0]), batch[1]) + squares

    def loss(output, target):
        return entropy(output, target) + sum(p.square().sum() for p in one.parameters())

    found = max_learning_rate(one, loss, labelled(), effort="thorough")
    expected = max_learning_rate(other, whole_loss(whole), labelled(), effort="thorough")
    assert found.limit == pytest.approx(expected.limit, rel=0.1)
    assert found.curvature.values == pytest.approx(expected.curvature.values, rel=1e-4)
    assert found.prediction.layer is None


def test_list_of_parameters_made_before_is_refused():
    problem = quadratic()
    held = list(problem.model.parameters())

    def loss(output, target):
        return squared_error(output, target) + sum(each.square().sum() for each in held)

    with pytest.raises(
        StateError, match="the loss uses the parameter 'weight' through a reference"
    ):
        max_learning_rate(problem.model, loss, problem.data)


@pytest.mark.parametrize("held", [False, True])
def test_compare_refuses_a_loss_over_the_given_model(held):
    model = small_network()
    parameters = list(model.parameters())

    def loss(output, target):
        own = parameters if held else model.parameters()
        return nn.functional.cross_entropy(output, target) + sum(p.square().sum() for p in own)

    with pytest.raises(StateError, match=r"'0.weight' of the given model.*give a whole_loss"):
        compare(model, loss, labelled(), norms=["none", "batch"])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_compare_takes_the_penalty_as_a_whole_loss():
    def loss(net, batch):
        squares = sum(parameter.square().sum() for parameter in net.parameters())
        return nn.functional.cross_entropy(net(batch[0]), batch[1]) + 50 * squares

    rows = compare(small_network(), whole_loss(loss), labelled(), norms=["none"], steps=3).rows
    assert rows[0].advice.limit < 2 / 100 * 1.1


class Head(nn.Module):
    """A network whose last layer is called by an attribute."""

    def __init__(self, kind="plain"):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        kinds = {"closure": lambda x: self.last(x), "method": self.own, "layer": self.last.forward}
        self.head = kinds.get(kind)

    def own(self, x):
        return self.last(x)

    def forward(self, x):
        return (self.head or self.own)(self.first(x).relu())


@pytest.mark.parametrize("kind", ["closure", "method", "layer"])
def test_attribute_that_calls_the_model_does_not_change_the_limit(kind):
    model = Head(kind)
    found = max_learning_rate(model, "cross_entropy", labelled())
    expected = max_learning_rate(Head(), "cross_entropy", labelled())
    assert found.verification.all_runs == expected.verification.all_runs
    assert all(parameter.grad is None for parameter in model.parameters())


def test_compare_converts_a_model_whose_attribute_calls_it():
    def rows(kind):
        model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), Head(kind))
        found = compare(model, "cross_entropy", labelled(), norms=["batch", "none"], steps=3)
        assert all(parameter.grad is None for parameter in model.parameters())
        return [(row.advice.limit, row.losses.tolist()) for row in found.rows]

    assert rows("closure") == rows("plain")


def test_gradients_of_another_model_are_left_alone():
    others = [Head("closure")]  # in a list: nothing tells that the loss uses a module

    def loss(output, target):
        return nn.functional.cross_entropy(output + others[0](torch.ones(1, 5)), target)

    found = max_learning_rate(Head(), loss, labelled())
    assert found.verification.high < float("inf")
    assert all(parameter.grad is None for parameter in others[0].parameters())


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_gradient_hooks_on_parameters_act_in_short_runs(factor):
    model, calls = small_network(), []
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: calls.append(1) or factor * gradient)
    options = {"effort": "thorough", "objective": "half_limit"}
    found = max_learning_rate(model, "cross_entropy", labelled(), **options)
    plain = max_learning_rate(small_network(), "cross_entropy", labelled(), **options)
    assert calls
    assert found.limit * factor == pytest.approx(plain.limit, rel=0.06)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_gradient_hooks_on_parameters_act_in_the_prediction(factor):
    model = small_network()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: factor * gradient)
    found = max_learning_rate(model, "cross_entropy", labelled(), verify=False)
    limit = max_learning_rate(small_network(), "cross_entropy", labelled()).limit
    assert limit / 2 < found.limit * factor < limit * 2


@pytest.mark.parametrize("verify", [True, False])
def test_compare_applies_gradient_hooks_like_the_advice_of_the_model(verify):
    model = small_network()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: 0.01 * gradient)
    found = compare(model, "cross_entropy", labelled(), ["batch", "none"], verify=verify, steps=2)
    options = {"verify": verify, "effort": "thorough"}
    alone = max_learning_rate(model, "cross_entropy", labelled(), **options)
    assert found["batch"].advice.limit == pytest.approx(alone.limit, rel=1e-6)
    plain = compare(small_network(), "cross_entropy", labelled(), ["none"], verify=verify, steps=2)
    ratio = 0.01 * found["none"].advice.limit / plain["none"].advice.limit
    assert 0.5 < ratio < 2


def test_compare_applies_no_hooks_to_other_shapes_or_frozen_parameters():
    model, calls = small_network(), []
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: calls.append(gradient.shape))
    model[0].weight.requires_grad_(False)
    compare(model, "cross_entropy", labelled(), ["group"], verify=False, steps=2)
    assert calls
    assert model[0].weight.shape not in calls


def test_compare_refuses_post_accumulate_hooks():
    model = small_network()
    model[3].weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.mul_(0.1))
    with pytest.raises(StateError, match=r"'3.weight' has a post-accumulate-grad hook"):
        compare(model, "cross_entropy", labelled(), verify=False, steps=2)


def test_explanation_names_gradient_hooks_as_the_reason_of_the_gap():
    model = small_network()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: 0.01 * gradient)
    found = max_learning_rate(model, "cross_entropy", labelled())
    assert found.limit > 10 * found.curvature_bound
    assert "have gradient hooks" in found.explanation
    assert "times that" not in found.explanation
    plain = max_learning_rate(small_network(), "cross_entropy", labelled())
    assert "hooks" not in plain.explanation


def test_hook_that_masks_a_gradient_keeps_the_weight_in_short_runs():
    model = small_network(norm=False)
    model[3].weight.register_hook(torch.zeros_like)
    problem = Problem(model, "cross_entropy", labelled())
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with TrainingSetup(problem, sgd(0.1), None, 0).training(0.1) as optimizer:
        short_run(problem, optimizer, None, 0, steps=5)
        kept = [n for n, each in model.named_parameters() if torch.equal(each, before[n])]
    assert kept == ["3.weight"]


def test_parameter_with_a_post_accumulate_hook_is_refused():
    model = small_network()
    real = torch.optim.SGD([model[3].weight], lr=0.1)
    model[3].weight.register_post_accumulate_grad_hook(lambda _: real.step())
    before = model[3].weight.detach().clone()
    for verify in (True, False):
        with pytest.raises(StateError, match=r"parameter '3.weight' has a post-accumulate-grad"):
            max_learning_rate(model, "cross_entropy", labelled(), verify=verify)
    assert torch.equal(model[3].weight, before)


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_optimizer_with_hooks_on_its_step_is_refused(register):
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    getattr(optimizer, register)(lambda *_: None)
    with pytest.raises(StateError, match=r"the SGD has hooks on its step.*pass a factory"):
        max_learning_rate(model, "cross_entropy", labelled(), optimizer=optimizer)


def test_hooks_that_a_factory_registers_act_in_short_runs():
    def halved(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        optimizer.register_step_pre_hook(halve)
        return optimizer

    def halve(optimizer, *_):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)

    data, options = labelled(), {"effort": "thorough", "objective": "half_limit"}
    found = max_learning_rate(small_network(), "cross_entropy", data, optimizer=halved, **options)
    plain = max_learning_rate(small_network(), "cross_entropy", data, **options)
    assert found.limit / 2 == pytest.approx(plain.limit, rel=0.06)


def test_backward_hooks_of_modules_are_named_where_they_do_not_count():
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(16, 3, generator=generator), torch.arange(16) % 2
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    plain = max_learning_rate(model, "cross_entropy", data, verify=False)
    assert "gradient hooks" not in plain.explanation
    model[1].register_full_backward_hook(lambda module, before, after: (50 * before[0],))
    hooked = max_learning_rate(model, "cross_entropy", data, verify=False)
    assert "those of modules do not count in the prediction either" in hooked.explanation
