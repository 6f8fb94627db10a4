import copy
import itertools
import math

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, quadratic, small_network
from torch import nn

from normscope.learning_rate import prediction
from normscope.learning_rate.last_layer import LastLayer, last_layer, last_layer_limit
from normscope.learning_rate.prediction import limit_after_one_step, predict_limit
from normscope.learning_rate.sample_trials import SampleTrials
from normscope.learning_rate.update_rule import Preconditioner, UpdateRule, rule_of
from normscope.problem import Evaluator, Problem, parameter_layout, whole_loss

SGD = UpdateRule("SGD")
LOSS = whole_loss(lambda net, given: nn.functional.cross_entropy(net(given[0]), given[1]))


def unasked(*given):
    raise AssertionError("it was asked for")


@pytest.fixture
def settled(monkeypatch):
    """The last layer must decide."""
    monkeypatch.setattr(prediction, "run_sample_trials", unasked)


@pytest.fixture
def trials_decide(monkeypatch):
    """Trials of the whole network must decide; it is stable at 1 and unstable at 4."""
    monkeypatch.setattr(
        prediction, "run_sample_trials", lambda *_: SampleTrials(1.0, 4.0, 32, 30, False)
    )


def alike(problem):
    """The same with a last layer so small that its outputs hardly differ."""
    with torch.no_grad():
        problem.model[3].weight.mul_(1e-3)
    return problem


def halves(size=64):
    inputs, targets = labelled(2 * size)
    return [(inputs[:size], targets[:size]), (inputs[size:], targets[size:])]


def features_after_a_step(model, rate, scale=None):
    """The last layer on features after one step of the layers before it, by plain torch."""
    moved, batches = copy.deepcopy(model).train(), halves()
    nn.functional.cross_entropy(moved(batches[-1][0]), batches[-1][1]).backward()
    with torch.no_grad():
        for parameter in moved[:3].parameters():
            parameter -= rate * parameter.grad / (1.0 if scale is None else scale)
        features = tuple(moved[:3](inputs) for inputs, _ in batches)
    weight, bias = model[3].weight.detach(), model[3].bias.detach()
    return LastLayer("3", weight, bias, features, tuple(targets for _, targets in batches))


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_prediction_is_the_onset_of_the_last_layer_after_one_step(momentum):
    model, rule = small_network(), UpdateRule("SGD", momentum)
    problem = Problem(model, "cross_entropy", halves())
    found = predict_limit(problem, halves(), rule, unasked)
    assert found.layer == "3"
    assert found.standing == last_layer_limit(features_after_a_step(model, 0.0), problem, rule)
    expected = last_layer_limit(features_after_a_step(model, found.standing), problem, rule)
    assert found.rate == pytest.approx(expected)
    assert "the last layer (3)" in found.reason


@pytest.mark.usefixtures("settled")
def test_step_is_divided_by_the_preconditioner():
    model, rule = small_network(), SGD
    problem = Problem(model, "cross_entropy", halves())
    size = sum(parameter.numel() for parameter in model.parameters())
    divisor = Preconditioner(torch.full((size,), 7.0), is_given=True)
    found = predict_limit(problem, halves(), rule, unasked, divisor)
    moved = features_after_a_step(model, found.standing, scale=7.0)
    assert found.rate == pytest.approx(last_layer_limit(moved, problem, rule))


@pytest.mark.usefixtures("settled")
def test_linear_model_is_predicted_by_its_quadratic():
    problem = quadratic()
    found = predict_limit(problem, [problem.data], SGD, unasked)
    assert found.rate == pytest.approx(0.5, rel=0.15)
    assert found.standing == found.rate  # no other layer moves


@pytest.mark.usefixtures("settled")
def test_last_layer_that_alone_is_trained_decides_whatever_it_gives():
    model = small_network(norm=False)
    problem = alike(Problem(model, "cross_entropy", halves()))
    expected = last_layer_limit(features_after_a_step(model, 0.0), problem, SGD)
    model[0].requires_grad_(False)
    assert predict_limit(problem, halves(), SGD, unasked).rate == pytest.approx(expected)


@pytest.mark.usefixtures("settled")
def test_step_that_gives_no_onset_keeps_that_of_the_features_as_they_are(monkeypatch):
    monkeypatch.setattr(prediction, "limit_after_one_step", lambda *_: None)
    problem = Problem(small_network(), "cross_entropy", halves())
    found = predict_limit(problem, halves(), SGD, unasked)
    assert found.rate == found.standing


def no_linear_end():
    return nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Tanh())


@pytest.mark.usefixtures("trials_decide")
@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(
            lambda: Problem(small_network(norm=False), "cross_entropy", halves()), id="none"
        ),
        pytest.param(
            lambda: Problem(no_linear_end(), "cross_entropy", halves()), id="no last layer"
        ),
        pytest.param(
            lambda: alike(Problem(small_network(), "cross_entropy", halves())), id="alike"
        ),
        pytest.param(lambda: Problem(small_network(), LOSS, halves()), id="no output"),
    ],
)
def test_where_the_last_layer_does_not_decide_trials_do(problem):
    found = predict_limit(problem(), halves(), SGD, unasked)
    assert (found.rate, found.layer, found.standing) == (2.0, None, None)
    assert found.reason == (
        "the whole network in a few steps on 32 samples: stable at 1, unstable at 4"
    )


@pytest.mark.usefixtures("trials_decide")
@pytest.mark.parametrize(("size", "momentum"), [(32, 0.0), (64, 0.95)])
def test_small_batches_and_slow_momentum_leave_it_to_trials(size, momentum):
    problem = Problem(small_network(), "cross_entropy", halves(size))
    assert predict_limit(problem, halves(size), UpdateRule("SGD", momentum), unasked).rate == 2.0


@pytest.mark.usefixtures("trials_decide")
def test_last_layer_that_breaks_late_leaves_it_to_trials(monkeypatch):
    monkeypatch.setattr(prediction, "breaks_late", lambda *_: True)
    problem = Problem(small_network(), "cross_entropy", halves())
    assert predict_limit(problem, halves(), SGD, unasked).rate == 2.0


def test_prediction_tells_of_momentum_that_builds_up(monkeypatch):
    trials = SampleTrials(1.0, 4.0, 4, 48, False, reached=0.25, is_late=True)
    monkeypatch.setattr(prediction, "run_sample_trials", lambda *_: trials)
    problem = Problem(small_network(norm=False), "cross_entropy", halves())
    found = predict_limit(problem, halves(), SGD, unasked)
    assert (found.rate, found.is_late, found.factor) == (0.5, True, 4.0)
    assert found.reason.endswith("lowered to 25% for what momentum builds up in 100 steps")
    assert found.lowered_bound(0.1) == 0.1
    assert found.lowered_bound(0.4) == 0.125


@pytest.mark.usefixtures("trials_decide")
def test_last_layer_that_is_always_stable_leaves_it_to_trials(monkeypatch):
    monkeypatch.setattr(prediction, "last_layer_limit", lambda *_: None)
    problem = Problem(small_network(), "cross_entropy", halves())
    assert predict_limit(problem, halves(), SGD, unasked).rate == 2.0


@pytest.mark.usefixtures("trials_decide")
@pytest.mark.parametrize(("after", "rate"), [(2.51, 2.51), (2.49, 2.0), (0.0, 2.0)])
def test_trials_decide_if_one_step_breaks_the_last_layer(monkeypatch, after, rate):
    monkeypatch.setattr(prediction, "last_layer_limit", lambda *_: 10.0)
    monkeypatch.setattr(prediction, "limit_after_one_step", lambda *_: after)
    problem = Problem(small_network(), "cross_entropy", halves())
    assert predict_limit(problem, halves(), SGD, unasked).rate == rate


@pytest.mark.parametrize(("low", "rate"), [(0.0, 0.2), (0.1, 0.2), (0.5, 0.5)])
def test_trials_in_which_nothing_breaks_leave_it_to_the_bound(monkeypatch, low, rate):
    quiet = SampleTrials(low, math.inf, 32, 40, False)
    monkeypatch.setattr(prediction, "run_sample_trials", lambda *_: quiet)
    problem = Problem(small_network(norm=False), "cross_entropy", halves())
    found = predict_limit(problem, halves(), SGD, lambda: 0.2)
    assert found.rate == rate
    expected = {
        0.0: "none could be tried",
        0.1: "no rate was unstable",
        0.5: "no rate up to 0.5 was unstable",
    }
    assert expected[low] in found.reason
    assert found.is_lower_end == (low == 0.5)  # above the bound, which is no estimate any more


def test_reason_tells_of_a_plateau_and_leaves_out_what_was_not_found(monkeypatch):
    monkeypatch.setattr(
        prediction, "run_sample_trials", lambda *_: SampleTrials(0.0, 4.0, 20, 40, True)
    )
    problem = Problem(small_network(norm=False), "cross_entropy", halves())
    reason = predict_limit(problem, halves(), SGD, unasked).reason
    assert reason == (
        "the whole network in a few steps on 20 samples, once its loss decreases: unstable at 4"
    )


@pytest.mark.parametrize("given", [True, False])
def test_trials_use_a_state_but_not_of_an_estimate(monkeypatch, given):
    told = []

    def noting(problem, batches, rule, preconditioner, seed, mode):
        told.append(preconditioner)
        return SampleTrials(1.0, 4.0, 32, 30, False)

    monkeypatch.setattr(prediction, "run_sample_trials", noting)
    problem = Problem(small_network(norm=False), "cross_entropy", halves())
    divisor = Preconditioner(torch.ones(1), is_given=given)
    predict_limit(problem, halves(), SGD, unasked, divisor)
    assert told == [divisor if given else None]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def problem_of(model):
    return Problem(model, "cross_entropy", [labelled()])


def limit_after(model, rate, rule=SGD):
    evaluator = Evaluator(problem_of(model), parameter_layout(model), "train", 0)
    layer = last_layer(evaluator)
    assert layer is not None
    return limit_after_one_step(evaluator, labelled(), layer, rule, None, rate)


@pytest.fixture
def moved_parameters(monkeypatch):
    """The parameters that each step moved, by name."""
    real, found = prediction.last_layer, []

    def noting(evaluator, moved):
        found.append(moved)
        return real(evaluator, moved)

    monkeypatch.setattr(prediction, "last_layer", noting)
    return found


def limit_by_plain_torch(model, problem, rate):
    """The same by a step of a copy."""
    moved, (inputs, targets) = copy.deepcopy(model), labelled()
    nn.functional.cross_entropy(moved(inputs), targets).backward()
    with torch.no_grad():
        for parameter in moved[0].parameters():
            parameter -= rate * parameter.grad
        features = moved[:2](inputs)
    weight, bias = model[2].weight.detach(), model[2].bias.detach()
    return last_layer_limit(LastLayer("2", weight, bias, (features,), (targets,)), problem, SGD)


@pytest.mark.parametrize("rate", [0.1, 3.0, 30.0])
def test_limit_after_a_step_is_that_of_a_copy_that_took_it(rate):
    model = network()
    expected = limit_by_plain_torch(model, problem_of(model), rate)
    assert limit_after(model, rate) == pytest.approx(expected)


@pytest.mark.parametrize("nesterov", [False, True])
def test_step_is_the_first_of_torch(nesterov, moved_parameters):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=nesterov)
    limit_after(model, 0.3, rule_of(optimizer))
    inputs, targets = labelled()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    torch.testing.assert_close(moved_parameters[0]["0.weight"], model[0].weight.detach())
    assert set(moved_parameters[0]) == {"0.weight", "0.bias"}


class TwoKinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3).double()

    def forward(self, inputs):
        return self.last(self.first(inputs).tanh().double())


def test_parameters_keep_their_own_dtype():
    assert limit_after(TwoKinds(), 0.1) is not None


def test_step_of_a_model_that_is_one_layer_moves_nothing():
    model = nn.Linear(5, 3)
    assert limit_after(model, 0.1) == limit_after(model, 1e6)


@pytest.mark.parametrize("times", [1, 4])
def test_step_out_of_the_range_of_numbers_is_shortened(monkeypatch, times):
    real, lengths = prediction.last_layer, []

    def seen(evaluator, moved):
        found = real(evaluator, moved)
        lengths.append(float((moved["0.weight"] - evaluator.point["0.weight"]).norm()))
        if len(lengths) > times:
            return found
        broken = tuple(features * math.inf for features in found.features)
        return LastLayer(found.name, found.weight, found.bias, broken, found.targets)

    monkeypatch.setattr(prediction, "last_layer", seen)
    assert (limit_after(network(), 1.0) == 0) == (times == 4)
    for one, shorter in itertools.pairwise(lengths):
        assert shorter == pytest.approx(one / 4, rel=1e-3)
