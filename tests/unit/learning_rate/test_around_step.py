"""Parameter groups, schedules, clipping, accumulation and optimizers of unknown rules."""

import copy
import math
from functools import partial

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network
from torch import nn
from torch.optim import SGD, Adam, AdamW, NAdam
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CyclicLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
)
from torch.utils.data import DataLoader, TensorDataset

from normscope.errors import ArgumentTypeError, InputError, StateError
from normscope.learning_rate import max_learning_rate
from normscope.learning_rate.around_step import effective_batches
from normscope.learning_rate.setup import TrainingSetup, first_step_rate
from normscope.learning_rate.stability import short_run
from normscope.problem import Problem
from normscope.training import sgd, train

advise = partial(max_learning_rate, effort="thorough", objective="half_limit")


class TwoWeights(nn.Module):
    """Independent weights a and b of the inputs 2 and 3: curvatures 4 and 9."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x * torch.cat([self.a, self.b])


INPUTS = torch.tensor([2.0, 3.0]).expand(4, 2).double()
TARGETS = torch.full((4, 2), 20.0).double()


def grouped(kind, rates, **options):
    model = TwoWeights().double()
    groups = [{"params": [model.a], "lr": rates[0]}, {"params": [model.b], "lr": rates[1]}]
    return model, kind(groups, **options)


@pytest.mark.parametrize(
    ("rates", "expected"), [((0.1, 0.1), 2 / 9), ((0.02, 0.1), 2 / 9), ((0.1, 0.02), 2 / 4)]
)
def test_limit_of_groups_is_that_of_the_quadratic(rates, expected):
    model, optimizer = grouped(SGD, rates)
    advice = advise(model, "squared_error", (INPUTS, TARGETS), optimizer=optimizer)
    assert advice.bound == pytest.approx(expected, rel=1e-6)
    assert advice.limit == pytest.approx(expected, rel=0.05)
    # trials enclose it between two rates, one twice the other, and it is their geometric mean
    assert abs(math.log2(advice.predicted / expected)) <= 0.5
    largest = max(rates)
    assert advice.rates() == pytest.approx([advice.recommended * r / largest for r in rates])
    assert ("fastest parameter group" in str(advice)) == (rates[0] != rates[1])
    assert [group["lr"] for group in optimizer.param_groups] == list(rates)


def test_group_that_is_not_trained_does_not_count():
    model, optimizer = grouped(SGD, (0.1, 0.0))
    advice = advise(model, "squared_error", (INPUTS, TARGETS), optimizer=optimizer)
    assert advice.bound == pytest.approx(2 / 4, rel=1e-6)
    assert advice.rates()[1] == 0


def test_run_scales_the_rates_of_all_groups():
    model, optimizer = grouped(partial(SGD, momentum=0.5), (0.1, 0.05))
    problem = Problem(model, "squared_error", (INPUTS, TARGETS))
    with TrainingSetup(problem, optimizer, None, 0).training(0.2) as made:
        losses = [step.loss for step in train(problem, made, 5)]
        assert made.param_groups[0]["lr"] == 0.2
    model, optimizer = grouped(partial(SGD, momentum=0.5), (0.2, 0.1))
    problem = Problem(model, "squared_error", (INPUTS, TARGETS))
    assert losses == [step.loss for step in train(problem, optimizer, 5)]


def test_adam_with_group_rates_is_bounded_but_not_predicted():
    found = []
    for rates in [(1e-3, 1e-3), (1e-3, 1e-4)]:
        model, optimizer = grouped(Adam, rates)
        data = (INPUTS[:, :], TARGETS)
        found.append(advise(model, "squared_error", data, optimizer=optimizer))
    one, two = found
    assert one.predicted is not None
    assert two.predicted is None
    assert "one learning rate" in two.prediction_reason
    # G = diag(4, 9), P = |g| = (40, 60): eigenvalues 0.1, 0.15, and 0.1, 0.015
    assert two.curvature.values[0] / one.curvature.values[0] == pytest.approx(2 / 3, rel=1e-3)


def linear(epochs=3, start=0.1):
    return lambda optimizer: LinearLR(optimizer, start, total_iters=epochs)


@pytest.mark.parametrize(
    "schedule",
    [
        linear(),
        lambda optimizer: LambdaLR(optimizer, lambda step: step / 10),
        lambda optimizer: CosineAnnealingLR(optimizer, 20, eta_min=0.01),
        lambda optimizer: OneCycleLR(optimizer, 0.2, 50),  # the common rate is max_lr
        lambda optimizer: CyclicLR(optimizer, 0.01, 0.2, 10),
    ],
)
def test_runs_follow_the_schedule(schedule):
    """At the optimizer's own rate a run is the training with the user's schedule."""

    def losses(model, optimizer, scheduler):
        found = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            found.append(loss.item())
        return found

    inputs, targets = labelled()
    model = small_network()
    factory = partial(SGD, lr=0.2, momentum=0.9)
    problem = Problem(model, "cross_entropy", (inputs, targets))
    setup = TrainingSetup(problem, factory, None, 0, scheduler=schedule)
    with setup.training(0.2) as optimizer:
        mine = [step.loss for step in train(problem, optimizer, 8)]
    optimizer = factory(model.parameters())
    expected = losses(model, optimizer, schedule(optimizer))
    assert mine == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("given", [0.01, 0.1])
@pytest.mark.parametrize("start", [0.001, 0.5])
def test_rates_of_one_cycle_are_its_largest(given, start):
    """Neither the optimizer's rate nor ``max_lr`` itself changes the answer."""
    model, found = small_network(), []
    for own, peak in ((0.1, 0.1), (start, given)):
        schedule = partial(OneCycleLR, max_lr=peak, total_steps=150)
        factory = partial(SGD, lr=own, momentum=0.9)
        options = {"optimizer": factory, "scheduler": schedule, "effort": "quick"}
        found.append(max_learning_rate(model, "cross_entropy", labelled(), **options))
    assert found[0].recommended == pytest.approx(found[1].recommended, rel=1e-6)
    assert "max_lr of the schedule" in str(found[1])


def test_schedule_of_an_optimizer_in_warm_up_starts_from_its_base_rate():
    model = small_network()
    optimizer = SGD(model.parameters(), lr=0.2)
    LambdaLR(optimizer, lambda step: step / 10)
    assert optimizer.param_groups[0]["lr"] == 0
    problem = Problem(model, "cross_entropy", labelled())
    warm_up = partial(LambdaLR, lr_lambda=lambda step: (step + 1) / 2)
    setup = TrainingSetup(problem, optimizer, None, 0, scheduler=warm_up)
    with setup.training(0.4) as made:
        assert made.relative_rates == [0.5]
    assert optimizer.param_groups[0]["lr"] == 0


def test_limit_with_a_schedule_is_that_of_its_base_rate():
    model, optimizer = grouped(SGD, (0.1, 0.1))
    half = partial(LambdaLR, lr_lambda=lambda step: 0.5)
    advice = advise(model, "squared_error", (INPUTS, TARGETS), optimizer=optimizer, scheduler=half)
    assert advice.bound == pytest.approx(2 * 2 / 9, rel=1e-6)
    assert advice.limit == pytest.approx(2 * 2 / 9, rel=0.05)
    assert advice.predicted == pytest.approx(2 * 2 / 9, rel=0.25)  # a constant factor is counted
    assert "before the schedule" in str(advice)
    assert "initial_lr" not in optimizer.param_groups[0]


def test_schedule_that_the_runs_do_not_reach_is_reported():
    model, optimizer = grouped(SGD, (0.1, 0.1))
    advice = advise(
        model, "squared_error", (INPUTS, TARGETS), optimizer=optimizer, scheduler=linear(1000, 0.01)
    )
    assert "0.11 times the schedule's largest rate" in " ".join(advice.notes)


def test_schedule_above_the_base_rate_lowers_limit_and_bound():
    model, optimizer = grouped(SGD, (0.1, 0.1))
    rise = partial(LambdaLR, lr_lambda=lambda step: min(1.0 + step, 10.0))
    advice = advise(model, "squared_error", (INPUTS, TARGETS), optimizer=optimizer, scheduler=rise)
    assert advice.bound == pytest.approx(0.1 * 2 / 9, rel=1e-3)
    assert 0.1 * 2 / 9 <= advice.limit < 0.2 * 2 / 9
    assert "its largest is 10 times that" in str(advice).replace("\n", " ")


def test_scheduler_of_the_user_is_refused_and_left_alone():
    """It would follow the runs, and set the rates of the user's optimizer."""
    model, optimizer = grouped(SGD, (0.1, 0.1))
    own = LinearLR(optimizer, 0.1, total_iters=9)
    before = own.state_dict(), optimizer.param_groups[0]["lr"]
    with pytest.raises(ArgumentTypeError, match="function from an optimizer to a scheduler"):
        advise(model, "squared_error", (INPUTS, TARGETS), optimizer=optimizer, scheduler=own)
    assert (own.state_dict(), optimizer.param_groups[0]["lr"]) == before


@pytest.mark.parametrize("verify", [True, False])
def test_running_statistics_stay_with_any_number_of_threads(verify):
    before = torch.get_num_threads()
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    state = {name: each.clone() for name, each in model.state_dict().items()}
    try:
        torch.set_num_threads(2)
        inputs = torch.randn(32, 5), torch.randint(3, (32,))
        max_learning_rate(model, "cross_entropy", inputs, verify=verify, effort="quick")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(state[name], each) for name, each in model.state_dict().items())


def test_schedulers_that_do_not_fit_are_refused():
    model, optimizer = grouped(SGD, (0.1, 0.1))
    ask = partial(advise, model, "squared_error", (INPUTS, TARGETS), optimizer=optimizer)
    with pytest.raises(ArgumentTypeError, match="ReduceLROnPlateau follows a metric"):
        ask(scheduler=ReduceLROnPlateau)
    with pytest.raises(ArgumentTypeError, match="must be a function from an optimizer"):
        ask(scheduler=lambda optimizer: None)
    with pytest.raises(InputError, match="shorter than a short run"):
        ask(scheduler=lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=20))
    with pytest.raises(InputError, match="clip_norm must be a positive number"):
        ask(clip_norm=0)
    with pytest.raises(InputError, match="accumulate must be at least 1"):
        ask(accumulate=0)


def test_clipped_runs_equal_a_clipped_training():
    model, data = small_network(), labelled()
    problem = Problem(model, "cross_entropy", data)
    with TrainingSetup(problem, sgd(1.0), None, 0, clip_norm=0.05).training(2.0) as made:
        mine = [step.loss for step in train(problem, made, 6)]
    optimizer, expected = SGD(model.parameters(), lr=2.0), []
    for _ in range(6):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data[0]), data[1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        expected.append(loss.item())
    assert mine == pytest.approx(expected, rel=1e-5)


def test_clipping_raises_the_verified_limit_alone():
    model, optimizer = grouped(SGD, (0.1, 0.1))
    ask = partial(advise, model, "squared_error", (INPUTS, TARGETS), optimizer=optimizer)
    free, clipped = ask(), ask(clip_norm=1.0)
    assert clipped.bound == free.bound
    assert clipped.limit > 5 * free.limit
    assert "clipping" in clipped.prediction_reason
    with pytest.raises(StateError, match=r"does not know gradient clipping.*verify=True"):
        ask(clip_norm=1.0, verify=False)


def test_accumulated_steps_equal_those_on_joined_batches():
    model = small_network()
    model[1] = nn.Identity()  # no batch statistics
    data = labelled()
    problem = Problem(model, "cross_entropy", data)
    runs = []
    for size, accumulate in ((32, 1), (8, 4)):
        setup = TrainingSetup(problem, sgd(1.0, 0.9), size, 3, accumulate=accumulate)
        with setup.training(0.3) as made:
            runs.append([step.loss for step in train(problem, made, 4, size, 3)])
    assert runs[1] == pytest.approx(runs[0], rel=1e-5)


def test_curvature_of_accumulated_batches_is_that_of_the_joined_batch():
    model = small_network()
    model[1] = nn.Sequential(nn.Dropout(0.2))
    problem = Problem(model, "cross_entropy", labelled())
    setup = TrainingSetup(problem, sgd(1.0), 8, 3, accumulate=4)
    with setup.isolated():
        batches, reason = effective_batches(setup, 3)
        (whole, _), *_ = TrainingSetup(problem, sgd(1.0), 32, 3).batches(3)
    assert reason is None
    assert len(batches) == 2
    assert torch.equal(batches[0][0], whole)
    assert model[1][0].p == 0.2


def test_batch_statistics_keep_accumulated_batches_apart():
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    advice = advise(model, "cross_entropy", labelled(), batch_size=8, accumulate=4)
    assert advice.predicted is None
    assert "not that of one joined batch" in advice.prediction_reason
    assert "single batches" in " ".join(advice.notes)
    assert advice.batch_size == 32
    assert "curvature of a batch of 8 is" in advice.explanation
    assert advice.batch_size == 32
    assert advice.verified is not None


@pytest.mark.parametrize(
    ("data", "batch_size", "most"),
    [
        (labelled(), 16, 4),
        (labelled(), None, 1),
        ([labelled(8), labelled(8)], None, 2),
        (DataLoader(TensorDataset(*labelled()), 16), None, 4),
    ],
)
def test_step_that_would_repeat_samples_is_refused(data, batch_size, most):
    def ask(accumulate):
        options = {"batch_size": batch_size, "accumulate": accumulate, "verify": False}
        return advise(small_network(norm=False), "cross_entropy", data, **options)

    with pytest.raises(InputError, match=f"more than the batches of an epoch, {most}:"):
        ask(most + 1)
    assert ask(most).batch_size == (16 if isinstance(data, list) else 64)


class SignDescent(torch.optim.Optimizer):
    """A custom optimizer: the sign of the gradient."""

    def __init__(self, parameters, lr=1e-3):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad.sign(), alpha=-group["lr"])


class TwoPasses(torch.optim.Optimizer):
    """SAM: the gradient at weights moved along the first gradient, by a closure."""

    def __init__(self, parameters, lr=0.1, rho=0.05, **options):
        super().__init__(parameters, {"lr": lr, "rho": rho})
        self.base_optimizer = SGD(self.param_groups, lr=lr, **options)
        self.param_groups = self.base_optimizer.param_groups
        self.closures = []

    @torch.no_grad()
    def first_step(self):
        weights = [each for group in self.param_groups for each in group["params"]]
        norm = torch.stack([each.grad.norm() for each in weights]).norm()
        for each in weights:
            self.state[each]["before"] = each.clone()
            each.add_(each.grad, alpha=self.param_groups[0]["rho"] / norm)

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for each in group["params"]:
                each.copy_(self.state[each]["before"])
        self.base_optimizer.step()

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is not None
        self.first_step()
        with torch.enable_grad():
            self.closures.append(float(closure()))
        self.second_step()


@pytest.mark.parametrize("factory", [SignDescent, NAdam, partial(TwoPasses, momentum=0.5)])
def test_optimizer_of_unknown_rule_is_advised_on_by_runs(factory):
    model = small_network()
    before = [each.clone() for each in model.parameters()]
    advice = advise(model, "cross_entropy", labelled(), optimizer=factory)
    assert advice.curvature is None
    assert advice.bound is None
    assert advice.predicted is None
    assert "is not known" in advice.curvature_reason
    assert "is not known" in advice.details()
    low, high = advice.verification.ends
    assert low < advice.limit < high
    made = factory(model.parameters(), lr=2 * high)
    problem = Problem(model, "cross_entropy", labelled())
    with TrainingSetup(problem, made, None, 0).training(2 * high) as optimizer:
        assert short_run(problem, optimizer, None, 0).failed
    assert all(map(torch.equal, before, model.parameters()))


def test_optimizer_of_unknown_rule_needs_runs():
    with pytest.raises(StateError, match=r"SignDescent is not known.*verify=True"):
        advise(small_network(), "cross_entropy", labelled(), optimizer=SignDescent, verify=False)


def test_optimizer_that_evaluates_the_loss_itself_is_refused():
    with pytest.raises(ArgumentTypeError, match="LBFGS evaluates the loss itself"):
        advise(small_network(), "cross_entropy", labelled(), optimizer=torch.optim.LBFGS)


def test_groups_of_different_momentum_are_advised_on_by_runs():
    model = TwoWeights().double()
    groups = [{"params": [model.a], "momentum": 0.5}, {"params": [model.b]}]
    optimizer = SGD(groups, lr=0.1)
    advice = advise(model, "squared_error", (INPUTS, TARGETS), optimizer=optimizer)
    assert "differ in 'momentum'" in advice.curvature_reason
    assert advice.limit == pytest.approx(min(2 * 1.5 / 4, 2 / 9), rel=0.05)


def test_second_pass_is_on_the_same_batch_with_the_same_dropout():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    problem = Problem(model, "cross_entropy", labelled())
    optimizer = TwoPasses(model.parameters(), rho=0.0)
    steps = [step.loss for step in train(problem, optimizer, 6, batch_size=16)]
    assert optimizer.closures == pytest.approx(steps, rel=1e-6)
    assert len(set(steps)) == 6


def test_copy_of_an_optimizer_around_another_has_one_rate():
    model = small_network()
    problem = Problem(model, "cross_entropy", labelled())
    own = TwoPasses(model.parameters(), lr=0.1, momentum=0.9)
    with TrainingSetup(problem, own, None, 0).training(0.4) as made:
        assert made.base_optimizer.param_groups[0]["lr"] == 0.4
        for _ in train(problem, made, 2):
            pass
        assert len(made.base_optimizer.state) == 6
    assert own.base_optimizer.param_groups[0]["lr"] == 0.1
    assert not own.base_optimizer.state
    assert not own.closures


def test_first_step_rate_changes_the_weights_by_the_share():
    model = small_network()
    problem = Problem(model, "cross_entropy", labelled())
    setup = TrainingSetup(problem, SignDescent, None, 0)
    rate = first_step_rate(setup, SignDescent(model.parameters()), 0.1)
    before = torch.cat([each.detach().flatten() for each in model.parameters()])
    optimizer = SignDescent(model.parameters(), lr=rate)
    for _ in train(problem, optimizer, 1):
        pass
    after = torch.cat([each.detach().flatten() for each in model.parameters()])
    assert float((after - before).norm() / before.norm()) == pytest.approx(0.1, rel=0.02)


def test_state_of_an_optimizer_behind_a_common_rate_can_be_saved():
    model = small_network()
    problem = Problem(model, "cross_entropy", labelled())
    setup = TrainingSetup(problem, partial(AdamW, lr=0.1), None, 0, scheduler=linear())
    with setup.training(0.05) as made:
        for _ in train(problem, made, 2):
            pass
        saved = copy.deepcopy(made.state_dict())
        weights = [each.detach().clone() for each in model.parameters()]
        losses = [step.loss for step in train(problem, made, 3)]
    with setup.training(0.07) as made:
        with torch.no_grad():
            for each, value in zip(model.parameters(), weights, strict=True):
                each.copy_(value)
        made.load_state_dict(saved)
        again = [step.loss for step in train(problem, made, 3)]
    assert again == pytest.approx(losses, rel=1e-6)


def test_frozen_backbone_with_a_head_is_the_head_on_its_features():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU())
    backbone.eval().requires_grad_(False)
    backbone[1].running_var.uniform_(0.5, 2.0)
    head, (inputs, targets) = nn.Linear(12, 3), labelled()
    whole = nn.Sequential(backbone, head)
    whole.training = True  # the backbone keeps its flags
    features = backbone(inputs)
    ask = partial(advise, momentum=0.5, batch_size=16)
    found = ask(whole, "cross_entropy", (inputs, targets))
    expected = ask(head, "cross_entropy", (features, targets))
    assert found.verified == expected.verified
    assert found.bound == pytest.approx(expected.bound, rel=1e-4)
    assert found.predicted == pytest.approx(expected.predicted, rel=1e-4)


def test_rates_of_a_scheduled_optimizer_are_the_present_ones_without_a_schedule():
    model, optimizer = grouped(SGD, (0.1, 0.1))
    schedule = LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.5**step])
    optimizer.step()
    schedule.step()
    problem = Problem(model, "squared_error", (INPUTS, TARGETS))
    with TrainingSetup(problem, optimizer, None, 0).training(0.3) as made:
        assert made.relative_rates == [1.0, 0.5]
    with TrainingSetup(problem, optimizer, None, 0, scheduler=linear()).training(0.3) as made:
        assert made.relative_rates == pytest.approx([0.1, 0.1])
