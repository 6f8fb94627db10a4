"""The simulated last layer against torch's own optimizers on the same layer."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from tests.unit.learning_rate.problems import labelled
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, RMSprop

from normscope.learning_rate import growth_limit, last_layer
from normscope.learning_rate.last_layer import (
    LastLayer,
    LastLayerTraining,
    breaks_late,
    last_layer_limit,
    losses_and_gradients,
)
from normscope.learning_rate.thresholds import STEPS
from normscope.learning_rate.update_rule import RuleSteps, UpdateRule, rule_of
from normscope.problem import Problem, cross_entropy, squared_error

BOUND = "_squared_error_bound"
OPTIMIZERS = [
    lambda parameters, rate: SGD(parameters, lr=rate),
    lambda parameters, rate: SGD(parameters, lr=rate, momentum=0.9, dampening=0.3),
    lambda parameters, rate: SGD(parameters, lr=rate, momentum=0.8, nesterov=True),
    lambda parameters, rate: SGD(parameters, lr=rate, momentum=0.5, weight_decay=0.1),
    lambda parameters, rate: Adam(parameters, lr=rate, weight_decay=0.1),
    lambda parameters, rate: AdamW(parameters, lr=rate, weight_decay=0.1),
    lambda parameters, rate: RMSprop(parameters, lr=rate, momentum=0.5),
    lambda parameters, rate: Adam(parameters, lr=rate, betas=(0.9, 0.5), amsgrad=True),
    lambda parameters, rate: RMSprop(parameters, lr=rate, alpha=0.9, centered=True),
]


def batches():
    inputs, targets = labelled(24)
    return [(inputs[:12].double(), targets[:12]), (inputs[12:].double(), targets[12:])]


def linear(bias=True):
    torch.manual_seed(0)
    return nn.Linear(5, 3, bias=bias, dtype=torch.float64)


def as_last_layer(layer, given):
    bias = None if layer.bias is None else layer.bias.detach()
    features, targets = zip(*given, strict=True)
    return LastLayer("", layer.weight.detach(), bias, features, targets)


def trained(make, rate, bias, steps, loss):
    """Weights and losses by torch's own loop."""
    layer, given, losses = linear(bias), batches(), []
    optimizer = make(layer.parameters(), rate)
    for step in range(steps):
        inputs, targets = given[step % 2]
        value = loss(layer(inputs), targets)
        losses.append(value.item())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return layer, losses


@pytest.fixture
def weights_after(monkeypatch):
    """The weights after every step, of all rates: none ends early."""
    found = []
    monkeypatch.setattr(last_layer, "growth_limit", lambda loss: math.inf)

    class Noting(RuleSteps):
        def apply(self, value, gradient, rate):
            super().apply(value, gradient, rate)
            found.append(value.clone())

    monkeypatch.setattr(last_layer, "RuleSteps", Noting)
    return found


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("bias", [True, False])
def test_updates_are_those_of_torch(make, bias, weights_after):
    layer, given, rates = linear(bias), batches(), (0.1, 0.02)
    problem = Problem(layer, "cross_entropy", given)
    rule = rule_of(make(layer.parameters(), 1.0))
    LastLayerTraining(as_last_layer(layer, given), problem, rule).stable(rates, 7)
    assert len(weights_after) == 7
    for found, rate in zip(weights_after[-1], rates, strict=True):
        expected, _ = trained(make, rate, bias, 7, problem.loss)
        assert torch.allclose(found[:, :5], expected.weight, rtol=1e-10, atol=1e-12)
        if bias:
            assert torch.allclose(found[:, 5], expected.bias, rtol=1e-10, atol=1e-12)


def test_offset_is_added_and_stays(weights_after):
    layer, given = linear(), batches()
    held = replace(as_last_layer(layer, given), bias=None, offset=layer.bias.detach())
    problem, rule = Problem(layer, "cross_entropy", given), rule_of(SGD(layer.parameters(), 1.0))
    training = LastLayerTraining(held, problem, rule)
    outputs = training._outputs(training._weights.unsqueeze(0), 0)
    assert torch.allclose(outputs[0].T, layer(given[0][0]))
    training.stable([0.1, 0.2], 3)
    optimizer = SGD([layer.weight], lr=0.2)
    for (inputs, targets), found in zip((*given, given[0]), weights_after, strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(inputs), targets).backward()
        optimizer.step()
        assert torch.allclose(found[1], layer.weight)


def real_run_is_stable(make, rate, layer_of, loss):
    """Whether torch's own loop stays below the limit of growth."""
    layer, given, first = layer_of(), batches(), None
    optimizer = make([each for each in layer.parameters() if each.requires_grad], rate)
    for step in range(STEPS):
        inputs, targets = given[step % 2]
        value = loss(layer(inputs), targets)
        first = value.item() if first is None else first
        if not value.item() <= growth_limit(loss) * first:
            return False
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return True


@pytest.mark.parametrize("bias", [True, False, "frozen"])
def test_bias_is_trained_left_out_or_constant(bias):
    def layer_of():
        layer = linear(bool(bias))
        if bias:
            layer.bias.data.add_(torch.tensor([0.0, 3.0, -3.0]))
        return layer.requires_grad_(True) if bias != "frozen" else frozen_bias(layer)

    def frozen_bias(layer):
        layer.bias.requires_grad_(False)
        return layer

    layer, given = layer_of(), batches()
    held = as_last_layer(layer, given)
    if bias == "frozen":
        held = replace(held, bias=None, offset=layer.bias.detach())
    problem = Problem(layer, "cross_entropy", given)
    rates = [0.1 * 1.3**power for power in range(20)]
    training = LastLayerTraining(held, problem, rule_of(SGD(linear().parameters(), 1.0)))
    expected = [real_run_is_stable(SGD, rate, layer_of, problem.loss) for rate in rates]
    assert training.stable(rates) == expected
    assert set(expected) == {True, False}


@pytest.mark.parametrize(
    ("make", "loss"),
    list(zip(OPTIMIZERS, itertools.cycle(["squared_error", "cross_entropy"]), strict=False)),
)
def test_stable_rates_are_those_of_real_runs(make, loss):
    layer, given = linear(), batches()
    problem = Problem(layer, loss, given)
    rule = rule_of(make(layer.parameters(), 1.0))
    rates = [0.02 * 4**power for power in range(6)]
    found = LastLayerTraining(as_last_layer(layer, given), problem, rule).stable(rates)
    limit = growth_limit(problem.loss)
    expected = []
    for rate in rates:
        _, losses = trained(make, rate, True, STEPS, problem.loss)
        expected.append(all(value <= limit * losses[0] for value in losses))
    assert found == expected
    assert set(found) == {True, False}  # the rates enclose the onset


def test_onset_is_that_of_the_quadratic():
    layer, given = linear(), batches()[:1]
    inputs = torch.cat([given[0][0], torch.ones(12, 1, dtype=torch.float64)], dim=1)
    largest = float(torch.linalg.eigvalsh(inputs.T @ inputs / 12).amax())
    problem = Problem(layer, "squared_error", given)
    onset = last_layer_limit(
        as_last_layer(layer, given), problem, rule_of(SGD(layer.parameters(), 1.0))
    )
    assert onset == pytest.approx(2 / largest, rel=0.1)


def test_onset_is_found_whatever_the_scale_of_the_loss():
    layer, given = linear(), batches()
    rule = rule_of(SGD(layer.parameters(), 1.0))

    def onset(scale):
        def loss(output, target):
            return scale * nn.functional.cross_entropy(output, target)

        return last_layer_limit(as_last_layer(layer, given), Problem(layer, loss, given), rule)

    reference = onset(1.0)
    for scale in (1e-4, 1e5):
        assert onset(scale) * scale == pytest.approx(reference, rel=0.2)


@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
@pytest.mark.parametrize("factor", [1e-6, 0.3, 0.6, 1.0, 2.0, 3.5, 20.0, 1e9])
def test_rate_that_is_near_or_far_changes_no_answer(loss, factor, monkeypatch):
    layer, given = linear(), batches()
    problem, rule = Problem(layer, loss, given), rule_of(SGD(layer.parameters(), 1.0))
    expected = last_layer_limit(as_last_layer(layer, given), problem, rule)
    tried, stable = [], LastLayerTraining.stable

    def counted(self, rates, *steps):
        tried.append(rates)
        return stable(self, rates, *steps)

    monkeypatch.setattr(LastLayerTraining, "stable", counted)
    found = last_layer_limit(as_last_layer(layer, given), problem, rule, near=factor * expected)
    assert found == pytest.approx(expected, rel=1e-9)
    assert (len(tried) == 1) == (0.5 < factor < 4)


@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
@pytest.mark.parametrize("at_once", [1.0, 3.0, 20.0, 1e3, math.inf])
def test_onset_that_shows_late_is_found_below_one_that_shows_at_once(at_once, loss, monkeypatch):
    layer, given = linear(), batches()
    problem, rule = Problem(layer, loss, given), rule_of(SGD(layer.parameters(), 1.0))

    def stable(self, rates, steps=STEPS):
        return [rate < (1.0 if steps == STEPS else at_once) for rate in rates]

    monkeypatch.setattr(LastLayerTraining, "stable", stable)
    for scale in (1e-3, 1.0, 30.0):
        monkeypatch.setattr(
            last_layer, "_squared_error_bound", lambda layer, rule, scale=scale: scale
        )
        found = last_layer_limit(as_last_layer(layer, given), problem, rule)
        assert found == pytest.approx(1.0, rel=0.13)


@pytest.mark.parametrize("loss", ["squared_error", nn.MSELoss(), nn.MSELoss(reduction="sum")])
def test_squared_errors_are_searched_around_their_bound_at_once(loss, monkeypatch):
    layer, given = linear(), batches()
    given = [(inputs, nn.functional.one_hot(labels, 3).double()) for inputs, labels in given]
    runs, stable = [], LastLayerTraining.stable

    def counted(self, rates, steps=STEPS):
        runs.append(steps)
        return stable(self, rates, steps)

    monkeypatch.setattr(LastLayerTraining, "stable", counted)
    rule = rule_of(SGD(layer.parameters(), 1.0, momentum=0.9))
    held = as_last_layer(layer, given)
    assert last_layer_limit(held, Problem(layer, loss, given), rule) is not None
    assert runs == [STEPS]


def test_rate_that_breaks_late_sends_the_search_down_by_one_coarse_step(monkeypatch):
    layer, given = linear(), batches()
    tried = []

    def stable(self, rates, steps=STEPS):
        tried.append(len(rates))
        return [rate < (1.0 if steps == STEPS else 3.0) for rate in rates]

    monkeypatch.setattr(LastLayerTraining, "stable", stable)
    monkeypatch.setattr(
        last_layer, "_squared_error_bound", lambda layer, rule: 3.0
    )  # the grid begins at 1.5
    rule = rule_of(SGD(layer.parameters(), 1.0))
    problem = Problem(layer, "cross_entropy", given)
    assert last_layer_limit(as_last_layer(layer, given), problem, rule) == pytest.approx(1, rel=0.2)
    assert tried == [5, 6, 6]


def test_layer_that_is_always_stable_has_no_onset():
    layer, given = linear(), batches()
    problem = Problem(layer, lambda output, target: 1 + 0 * output.sum(), given)
    assert (
        last_layer_limit(
            as_last_layer(layer, given), problem, rule_of(SGD(layer.parameters(), 1.0))
        )
        is None
    )


def test_outputs_with_positions_are_simulated_too():
    torch.manual_seed(1)
    layer = nn.Linear(4, 3, dtype=torch.float64)
    features = torch.randn(6, 7, 4, dtype=torch.float64)
    targets = torch.randint(3, (6, 7))

    def loss(output, target):
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    held = LastLayer("", layer.weight.detach(), layer.bias.detach(), (features,), (targets,))
    rule = rule_of(SGD(layer.parameters(), 1.0))
    training = LastLayerTraining(held, Problem(layer, loss, (features, targets)), rule)
    outputs = training._outputs(training._weights.expand(2, -1, -1).contiguous(), 0)
    assert outputs.shape == (2, 3, 6 * 7)
    assert torch.allclose(outputs[1].T.view(6, 7, 3), layer(features))
    assert last_layer_limit(held, Problem(layer, loss, (features, targets)), rule) > 0


SAMPLES, CANDIDATES, CLASSES = 6, 4, 3


def outputs(*positions):
    """(candidates, samples, positions, classes)."""
    torch.manual_seed(0)
    return torch.randn(CANDIDATES, SAMPLES, *positions, CLASSES, dtype=torch.float64)


def in_columns(given):
    return given.flatten(1, -2).transpose(1, 2)


def labels():
    return torch.tensor([0, 1, 2, 0, 1, 1])


def values():
    return torch.randn(SAMPLES, CLASSES, dtype=torch.float64)


def one_by_one(loss, given, target):
    """Losses and gradients of each candidate by itself."""
    found = []
    for candidate in given:
        leaf = candidate.clone().requires_grad_()
        value = loss(leaf, target)
        found.append((value.item(), torch.autograd.grad(value, leaf)[0]))
    losses, gradients = zip(*found, strict=True)
    return torch.tensor(losses, dtype=torch.float64), in_columns(torch.stack(gradients))


def uses_autograd(function):
    return "_by_autograd" in function.__qualname__


def compared(loss, given, target):
    problem = Problem(nn.Linear(2, CLASSES), loss, (torch.zeros(SAMPLES, 2), target))
    found = losses_and_gradients(problem, given[0], target)
    for computed, expected in zip(
        found(in_columns(given)), one_by_one(loss, given, target), strict=True
    ):
        torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-14)
    return found


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (cross_entropy, labels()),
        (functional.cross_entropy, labels()),
        (nn.CrossEntropyLoss(), labels()),
        (nn.CrossEntropyLoss(reduction="sum"), labels()),
        (squared_error, labels()),
        (squared_error, values()),
        (nn.MSELoss(), values()),
        (nn.MSELoss(reduction="sum"), values()),
        (nn.MSELoss(), functional.one_hot(labels(), CLASSES)),  # integers, but not labels
    ],
)
def test_known_losses_have_the_gradients_of_autograd(loss, target):
    assert not uses_autograd(compared(loss, outputs(), target))


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.2), labels()),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]).double()), labels()),
        (cross_entropy, values().softmax(1)),
        (functional.smooth_l1_loss, values()),
    ],
)
def test_other_losses_are_differentiated(loss, target):
    assert uses_autograd(compared(loss, outputs(), target))


def test_outputs_with_positions_are_differentiated():
    def loss(output, target):
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())

    target = labels().unsqueeze(1).expand(SAMPLES, 2)
    assert uses_autograd(compared(loss, outputs(2), target))


@pytest.mark.parametrize("size", [1e-4, 1.0, 300.0])  # its square is below or above a half's range
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", [nn.MSELoss(), "cross_entropy"])
def test_losses_of_half_precision_keep_small_and_large_sums(dtype, loss, size):
    torch.manual_seed(0)
    samples = 80_000  # whose entropies alone sum to more than half precision can hold
    given = (size * torch.randn(2, CLASSES, samples)).to(dtype)
    target = torch.zeros(samples, CLASSES, dtype=dtype)
    if loss == "cross_entropy":
        target = torch.randint(CLASSES, (samples,))
    problem = Problem(nn.Linear(2, CLASSES), loss, (torch.zeros(samples, 2), target))
    losses, gradient = losses_and_gradients(problem, given[0].T, target)(given)
    assert losses.dtype == torch.float32
    assert gradient.dtype == dtype
    for found, each in zip(losses, given.double(), strict=True):
        wide = target if loss == "cross_entropy" else target.double()
        # the logarithms are half as precise; near log(3) bfloat16 rounds all of them alike
        assert found.item() == pytest.approx(problem.loss_of(each.T, wide).item(), rel=2**-8)


class Remembering(nn.Module):
    """A loss over the mean of those that it has seen."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(()).double())

    def forward(self, output, target):
        value = functional.smooth_l1_loss(output, target) / self.seen.item()
        self.seen.mul_(0.5).add_(0.5 * value.detach())
        return value


def test_candidates_do_not_share_the_memory_of_a_loss():
    loss, target = Remembering(), values()
    problem = Problem(nn.Linear(2, CLASSES), loss, (torch.zeros(SAMPLES, 2), target))
    found = losses_and_gradients(problem, outputs()[0], target)
    for _ in range(2):  # nor do the steps
        losses, gradients = found(in_columns(outputs()))
        for place, each in enumerate(outputs()):
            (value,), (gradient,) = one_by_one(Remembering(), [each], target)
            torch.testing.assert_close(losses[place], value)
            torch.testing.assert_close(gradients[place], gradient)
    assert loss.seen == 1


def test_scores_beyond_the_range_of_numbers_have_no_finite_loss():
    found = losses_and_gradients(
        Problem(nn.Linear(2, CLASSES), "cross_entropy", (torch.zeros(SAMPLES, 2), labels())),
        outputs()[0],
        labels(),
    )
    factors = torch.tensor([1.0, 1e308, torch.inf, torch.nan]).view(4, 1, 1)
    losses, _ = found(in_columns(outputs() * factors))
    assert losses.isfinite().tolist()[0]
    assert not losses.isfinite()[2:].any()


def test_layer_with_strong_momentum_and_random_targets_breaks_late():
    torch.manual_seed(0)
    batches = [(torch.randn(4, 30), torch.randint(3, (4,))) for _ in range(25)]
    layer = LastLayer(
        "", torch.zeros(3, 30), None, tuple(x for x, _ in batches), tuple(y for _, y in batches)
    )
    problem = Problem(nn.Linear(30, 3), "cross_entropy", batches)
    late = []
    for momentum in (0.0, 0.9):
        rule = UpdateRule("SGD", momentum)
        limit = last_layer_limit(layer, problem, rule)
        training = LastLayerTraining(layer, problem, rule)
        assert training.stable([limit / 2, 3 * limit], 100) == [True, False]
        late.append(breaks_late(layer, problem, rule, limit))
        assert late[-1] == training.stable([2 * limit], 15)[0]
    assert late == [False, True]
