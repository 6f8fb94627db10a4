"""TrialStart against steps of torch's own optimizer."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, plateau, quadratic, small_network
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import RMSprop

from normscope.errors import StateError
from normscope.learning_rate import trial_run
from normscope.learning_rate.trial_run import TrialRun, TrialStart, leave_plateau, may_be_on_plateau
from normscope.learning_rate.update_rule import Preconditioner, UpdateRule, rule_of
from normscope.problem import Problem, parameter_layout


def thirds():
    inputs, targets = labelled(96)
    return list(zip(inputs.split(32), targets.split(32), strict=True))


def walks():
    return TrialStart(Problem(small_network(), "cross_entropy", thirds()), thirds())


def trained_by(optimizer, model, batches, steps):
    for number in range(steps):
        inputs, targets = batches[number % len(batches)]
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.7, "nesterov": True}])
def test_point_and_loss_are_those_of_torch(options):
    model, batches = small_network(), thirds()
    moved = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(moved.parameters(), lr=0.3, **options)
    walk = TrialRun(walks(), rule_of(optimizer), 0.3).take(5)
    trained_by(optimizer, moved, batches, 5)
    for name, parameter in moved.named_parameters():
        torch.testing.assert_close(walk.point[name], parameter.detach())
    inputs, targets = batches[5 % 3]
    assert walk.taken == 5
    assert walk.loss == pytest.approx(cross_entropy(moved(inputs), targets).item())


class TwoKinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8).bfloat16(), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.last(self.first(inputs.bfloat16()).tanh().float())


def test_steps_too_small_for_a_parameters_own_dtype_do_not_add_up():
    model, batches = TwoKinds(), thirds()
    moved = copy.deepcopy(model)
    walk = TrialRun(
        TrialStart(Problem(model, "cross_entropy", batches), batches), UpdateRule("SGD"), 1e-4
    )
    trained_by(torch.optim.SGD(moved.parameters(), lr=1e-4), moved, batches, 60)
    walk.take(60)
    for name, parameter in moved.named_parameters():
        assert walk.point[name].dtype == parameter.dtype
        torch.testing.assert_close(walk.point[name], parameter.detach(), rtol=0, atol=1e-6)


def test_steps_of_rmsprop_are_divided():
    batches = [(inputs.double(), targets) for inputs, targets in thirds()]
    model = small_network().double()
    moved = copy.deepcopy(model).train()
    # with this decay the squares stay as given, whatever the gradient
    optimizer = RMSprop(moved.parameters(), lr=0.01, alpha=1.0, eps=0.0, momentum=0.5)
    divisor = torch.linspace(0.1, 2.0, sum(p.numel() for p in moved.parameters())).double()
    parts = parameter_layout(moved).split(divisor)
    for parameter, part in zip(moved.parameters(), parts, strict=True):
        state = {"square_avg": part.square(), "momentum_buffer": torch.zeros_like(parameter)}
        optimizer.state[parameter] = {"step": torch.zeros(()), **state}
    shared = TrialStart(
        Problem(model, "cross_entropy", batches), batches, Preconditioner(divisor, True)
    )
    walk = TrialRun(shared, rule_of(optimizer), 0.01).take(5)
    trained_by(optimizer, moved, batches, 5)
    for name, parameter in moved.named_parameters():
        torch.testing.assert_close(walk.point[name], parameter.detach())


def test_steps_of_adam_go_along_the_mean_of_divided_gradients():
    problem = quadratic(eigenvalues=(4.0, 1.0), shares=(1.0, 1.0))
    divisor = torch.tensor([0.5, 2.0], dtype=torch.float64)
    walk = TrialRun(
        TrialStart(problem, [problem.data], Preconditioner(divisor, True)),
        UpdateRule("Adam", momentum=0.9, dampening=0.9, second_moment=0.999),
        0.01,
    ).take(2)
    curvature, solution = torch.tensor([4.0, 1.0]).double(), torch.tensor([0.5, 1.0]).double()
    once = 0.01 * curvature * solution / divisor
    mean = 0.9 * once + 0.1 * 0.01 * curvature * (solution - once) / divisor
    torch.testing.assert_close(walk.point["weight"], (once + mean).unsqueeze(0))


def test_model_stays_as_it_is():
    shared = walks()
    before = copy.deepcopy(shared.problem.model.state_dict())
    TrialRun(shared, UpdateRule("SGD"), 0.3).take(3)
    for name, tensor in shared.problem.model.state_dict().items():
        assert torch.equal(tensor, before[name])


# one step at a rate makes the loss (1 - rate)^2 times as large; 95 % is at 0.0253
@pytest.mark.parametrize(
    ("rate", "fallen", "broken"), [(0.0250, False, False), (0.0256, True, False)]
)
def test_loss_falls_or_stands_still(rate, fallen, broken):
    problem = quadratic(eigenvalues=(1.0,), shares=(1.0,))
    walk = TrialRun(TrialStart(problem, [problem.data]), UpdateRule("SGD"), rate).take(1)
    assert (walk.has_decreased(), walk.is_unstable) == (fallen, broken)


@pytest.mark.parametrize(("rate", "broken"), [(2.70, False), (2.76, True)])
def test_walk_breaks_where_the_definition_says_and_goes_no_further(rate, broken):
    # the first step makes the loss (1 - rate)^2 times as large; the limit of 3 is at 2.73
    problem = quadratic(eigenvalues=(1.0,), shares=(1.0,))
    walk = TrialRun(TrialStart(problem, [problem.data]), UpdateRule("SGD"), rate)
    assert walk.take(1).is_unstable is broken
    if broken:
        assert walk.take(5).taken == 1


def test_step_out_of_the_range_of_numbers_is_broken():
    problem = quadratic(eigenvalues=(1.0,), shares=(1.0,))
    walk = TrialRun(TrialStart(problem, [problem.data]), UpdateRule("SGD"), 1e300).take(2)
    assert walk.is_unstable
    assert not walk.has_decreased()


def test_error_of_the_model_on_the_way_reaches_the_user():
    model, calls = small_network(), []

    def break_at_the_third_pass(module, given):
        calls.append(1)
        if len(calls) == 3:
            raise StateError("the third")

    walk = TrialRun(
        TrialStart(Problem(model, "cross_entropy", thirds()), thirds()), UpdateRule("SGD"), 0.1
    )
    model.register_forward_pre_hook(break_at_the_third_pass)
    with pytest.raises(StateError, match="the third"):
        walk.take(3)


def test_loss_that_is_not_positive_has_no_scale():
    problem = Problem(small_network(), lambda f, y: f.sum() - 1e4, thirds())
    walk = TrialRun(TrialStart(problem, thirds()), UpdateRule("SGD"), 1e-3).take(1)
    assert walk.has_decreased()
    assert not walk.is_unstable


def test_walks_from_elsewhere_begin_there_with_the_batch_that_comes_next():
    shared = walks()
    walk = TrialRun(shared, UpdateRule("SGD"), 0.3).take(4)
    further = shared.moved_to(walk.taken, walk.point)
    torch.testing.assert_close(further.batches[0][0], shared.batches[1][0])
    assert len(further.batches) == 3
    assert further.first_losses[0] == pytest.approx(walk.loss)
    whole, parted = walk.take(2).point, TrialRun(further, UpdateRule("SGD"), 0.3).take(2).point
    for name, tensor in whole.items():
        torch.testing.assert_close(parted[name], tensor)


def test_walk_that_is_told_to_stops_where_the_loss_is_low_enough():
    problem = quadratic(eigenvalues=(1.0,), shares=(1.0,))
    walk = TrialRun(TrialStart(problem, [problem.data]), UpdateRule("SGD"), 0.1).take(50, until=0.5)
    assert walk.taken == 4  # 0.81^4 is 0.43, 0.81^3 is 0.53
    assert walk.has_decreased(0.5)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, RMSprop])
def test_without_a_divisor_the_rule_itself_is_followed(optimizer):
    batches = [(inputs.double(), targets) for inputs, targets in thirds()]
    model = small_network().double()
    moved = copy.deepcopy(model).train()
    made = optimizer(moved.parameters(), lr=0.01, weight_decay=0.1)
    walk = TrialRun(
        TrialStart(Problem(model, "cross_entropy", batches), batches), rule_of(made), 0.01
    )
    walk.take(5)
    trained_by(made, moved, batches, 5)
    for name, parameter in moved.named_parameters():
        torch.testing.assert_close(walk.point[name], parameter.detach())


def test_held_walks_go_where_others_do():
    apart, together, rule = walks(), walks(), UpdateRule("SGD", momentum=0.9)
    expected = [TrialRun(apart, rule, rate).take(4) for rate in (0.1, 0.5)]
    with together.prepared():
        found = [TrialRun(together, rule, rate).take(4) for rate in (0.1, 0.5)]
        outputs = found[0].outputs()
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one.leaves, other.leaves)
    torch.testing.assert_close(outputs, expected[0].outputs())


def test_held_model_comes_back_after_an_error():
    shared = walks()
    own = dict(shared.problem.model.named_parameters())

    def interrupted():
        with shared.prepared():
            TrialRun(shared, UpdateRule("SGD"), 0.3).take(2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    for name, parameter in shared.problem.model.named_parameters():
        assert parameter is own[name]


def test_walk_on_the_first_batch_alone_and_one_that_begins_there():
    shared, rule = walks(), UpdateRule("SGD")
    alone = TrialRun(shared, rule, 0.2, first_only=True).take(3)
    only = TrialRun(TrialStart(shared.problem, shared.batches[:1]), rule, 0.2).take(3)
    torch.testing.assert_close(alone.leaves, only.leaves)
    further = TrialRun(shared, rule, 0.1, after=alone)
    torch.testing.assert_close(further.gradients, only.gradients)
    pairs = zip(alone.leaves, alone.gradients, strict=True)
    moved = [leaf.detach() - 0.1 * gradient for leaf, gradient in pairs]
    torch.testing.assert_close(list(further.take(1).point.values()), moved)
    first = cross_entropy(small_network()(shared.batches[1][0]), shared.batches[1][1]).item()
    assert shared.first_losses[1] == pytest.approx(first)  # what breaks is told by the start


def test_decay_that_is_part_of_the_gradient_is_divided_too():
    problem = quadratic(eigenvalues=(4.0, 1.0), shares=(1.0, 1.0))
    with torch.no_grad():
        problem.model.weight.copy_(torch.tensor([[1.0, -1.0]]))
    divisor = torch.tensor([0.5, 2.0], dtype=torch.float64)
    shared = TrialStart(problem, [problem.data], Preconditioner(divisor, True))
    gradient = shared.initial[2][0].squeeze()
    begin = torch.tensor([1.0, -1.0], dtype=torch.float64)
    rule = UpdateRule("RMSprop", second_moment=0.9, weight_decay=0.3)
    coupled = TrialRun(shared, rule, 0.1).take(1).point["weight"].squeeze()
    torch.testing.assert_close(coupled, begin - 0.1 * (gradient + 0.3 * begin) / divisor)
    apart = TrialRun(shared, replace(rule, decoupled=True), 0.1).take(1).point["weight"].squeeze()
    torch.testing.assert_close(apart, begin * (1 - 0.03) - 0.1 * gradient / divisor)


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(5, 3), nn.Parameter(torch.ones(2))

    def forward(self, inputs):
        return self.used(inputs)


@pytest.mark.parametrize("divisor", [None, Preconditioner(torch.full((20,), 2.0), True)])
def test_parameters_that_the_loss_does_not_use_stay(divisor):
    batch = labelled(32)
    shared = TrialStart(Problem(Partly(), "cross_entropy", batch), [batch], divisor)
    walk = TrialRun(shared, UpdateRule("SGD"), 0.1).take(2)
    assert torch.equal(walk.point["unused"], torch.ones(2))


class Overwriting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, inputs):
        return self.layer(inputs.mul_(0.5))


def test_inputs_that_the_model_overwrites_stay_as_they_are():
    batch = labelled(32)
    before = batch[0].clone()
    shared = TrialStart(Problem(Overwriting(), "cross_entropy", batch), [batch])
    TrialRun(shared, UpdateRule("SGD"), 0.3).take(2).outputs()
    assert torch.equal(batch[0], before)


def test_first_loss_is_that_of_the_first_batch():
    shared = walks()
    walk = TrialRun(shared, UpdateRule("SGD"), 0.3)
    assert walk.loss == pytest.approx(shared.first_losses[0])
    assert math.isfinite(walk.rate)


def test_loss_is_compared_with_the_mean_of_the_first_eight():
    inputs = torch.arange(1.0, 21.0).sqrt().view(20, 1)
    problem = Problem(nn.Linear(1, 1, bias=False), "squared_error", (inputs, torch.zeros(20, 1)))
    with torch.no_grad():
        problem.model.weight.fill_(math.sqrt(2.0))
    batches = [(each, torch.zeros(1, 1)) for each in inputs.split(1)]  # losses 1, 2, ... 20
    shared = TrialStart(problem, batches)
    assert shared.first_losses == pytest.approx(list(range(1, 9)))
    still = TrialRun(shared, UpdateRule("SGD"), 0.0)
    assert still.take(20).taken == 13  # the loss of 14 is over three times the mean of 4.5
    assert still.is_unstable
    assert not TrialRun(shared, UpdateRule("SGD"), 0.0).take(7).has_decreased()


def plateau_start(problem):
    return TrialStart(problem, [problem.data])


@pytest.fixture
def begun(monkeypatch):
    """Every walk that is begun."""
    begun = []

    class Remembered(TrialRun):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            begun.append(self)

    monkeypatch.setattr(trial_run, "TrialRun", Remembered)
    return begun


def test_walk_ends_where_the_loss_has_begun_to_fall():
    found = plateau_start(plateau(0.15))
    left = leave_plateau(found, 1.0)
    assert left is not None
    loss = found.problem.loss_of(left.outputs(), found.problem.data[1]).item()
    assert 0.5 < loss / found.first_losses[0] <= 0.95  # the first place, not a later one


def test_as_many_steps_without_momentum_stay_on_it():
    found, rate = plateau_start(plateau(0.15)), 0.1 * 2 * 1.9
    carried = TrialRun(found, UpdateRule("SGD", momentum=0.9), rate)
    while not carried.has_decreased():
        carried.take(1)
    left = leave_plateau(found, 1.0)
    assert left is not None
    torch.testing.assert_close(left.leaves, carried.leaves, rtol=0, atol=0)
    plain = TrialRun(found, UpdateRule("SGD"), rate).take(carried.taken)
    assert not plain.has_decreased()
    assert not plain.is_unstable


@pytest.mark.parametrize("factor", [12.0, 40.0])
def test_walk_that_breaks_is_repeated_at_a_lower_rate(factor):
    steep = plateau(0.15)
    first = TrialRun(plateau_start(steep), UpdateRule("SGD", momentum=0.9), 0.38 * factor)
    while not (first.is_unstable or first.has_decreased()):
        first.take(1)
    assert first.is_unstable  # it would not do without
    assert leave_plateau(plateau_start(steep), 1.0 / factor) is not None


def test_caution_and_depth_of_the_fall_can_be_chosen(begun):
    found = plateau_start(plateau(0.15))
    left = leave_plateau(found, 1.0, caution=0.05, decreased=0.5)
    assert left is begun[0]
    assert left.rate == pytest.approx(0.05 * 2 * 1.9)
    assert left.has_decreased(0.5)


def test_loss_that_never_falls_has_no_way_off(begun):
    flat = plateau()
    still = Problem(flat.model, lambda output, target: 1 + 0 * output.sum(), flat.data)
    assert leave_plateau(plateau_start(still), 1.0) is None
    assert [each.taken for each in begun] == [32]  # a lower rate would stand still as well


def test_loss_that_breaks_at_every_rate_has_no_way_off(begun):
    base = plateau()
    start = base.model(base.data[0]).detach()

    def loss(output, target):
        moved = (output - start).abs().sum()
        return 1 + 9.0 * (moved > 0) + 1e-3 * output[1].sum()

    assert leave_plateau(plateau_start(Problem(base.model, loss, base.data)), 1.0) is None
    assert [each.rate for each in begun] == pytest.approx([0.38, 0.38 / 4, 0.38 / 16])
    assert [each.taken for each in begun] == [1, 1, 1]


def test_model_stays_where_it_is():
    problem = plateau(0.15)
    leave_plateau(plateau_start(problem), 1.0)
    assert torch.equal(problem.model[0].weight, torch.full((1, 1), 0.15, dtype=torch.float64))


def outputs(scale, positions=()):
    """Two outputs that are this far from their mean, in one direction each."""
    signs = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    found = scale * (signs + 5.0)
    return found.view(*positions, 2) if positions else found


LABELS = torch.tensor([0, 1, 0, 1])
VECTORS = torch.tensor([[8.0, 3.0], [12.0, 3.0], [8.0, 7.0], [12.0, 7.0]])  # spread 2 around a mean


@pytest.mark.parametrize(
    ("loss", "targets", "threshold"),
    [
        ("cross_entropy", LABELS, 0.15),
        (torch.nn.CrossEntropyLoss(weight=torch.ones(2)), LABELS, 0.15),
        ("squared_error", LABELS, 0.03 / 2),  # a one-hot entry is half away from its mean
        ("squared_error", VECTORS, 0.03 * 2),
        (torch.nn.MSELoss(), VECTORS, 0.03 * 2),
    ],
)
def test_net_may_stand_still_if_its_outputs_are_nearly_alike(loss, targets, threshold):
    problem = Problem(torch.nn.Linear(2, 2), loss, (torch.ones(4, 2), targets))
    assert may_be_on_plateau(problem, outputs(0.99 * threshold), targets)
    assert not may_be_on_plateau(problem, outputs(1.01 * threshold), targets)


def test_positions_count_as_samples():
    targets = VECTORS.view(2, 2, 2)
    problem = Problem(torch.nn.Linear(2, 2), torch.nn.MSELoss(), (torch.ones(2, 2, 2), targets))
    assert may_be_on_plateau(problem, outputs(0.059, (2, 2)), targets)
    assert not may_be_on_plateau(problem, outputs(0.061, (2, 2)), targets)


@pytest.mark.parametrize("targets", [torch.tensor([0, 5, 2, 3]), torch.ones(4, 1)])
def test_of_targets_that_are_broadcast_nothing_is_known(targets):
    problem = Problem(torch.nn.Linear(2, 2), torch.nn.MSELoss(), (torch.ones(4, 2), targets))
    assert may_be_on_plateau(problem, outputs(100.0), targets)


def test_integers_in_the_shape_of_the_outputs_are_no_labels():
    targets = VECTORS.long()
    problem = Problem(torch.nn.Linear(2, 2), torch.nn.MSELoss(), (torch.ones(4, 2), targets))
    assert may_be_on_plateau(problem, outputs(0.059), targets)
    assert not may_be_on_plateau(problem, outputs(0.061), targets)


def test_of_other_losses_nothing_is_known():
    problem = Problem(torch.nn.Linear(2, 2), torch.nn.L1Loss(), (torch.ones(4, 2), VECTORS))
    assert may_be_on_plateau(problem, outputs(100.0), VECTORS)


def test_outputs_out_of_the_range_of_numbers_are_not_told_apart():
    problem = Problem(torch.nn.Linear(2, 2), "cross_entropy", (torch.ones(4, 2), LABELS))
    assert may_be_on_plateau(problem, outputs(float("nan")), LABELS)


def test_classes_of_images_are_their_first_axis():
    problem = Problem(torch.nn.Identity(), "cross_entropy", (torch.ones(4, 2), LABELS))
    alike = torch.tensor([5.0, -5.0]).view(1, 2, 1).expand(4, 2, 3)
    labels = LABELS.unsqueeze(1).expand(4, 3)
    assert may_be_on_plateau(problem, alike, labels)
    assert not may_be_on_plateau(problem, torch.randn(4, 2, 3), labels)
