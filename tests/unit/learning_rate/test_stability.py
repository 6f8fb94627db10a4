import math
from itertools import count

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, mortal, quadratic, small_network
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adafactor, Adam, AdamW, NAdam, RMSprop

from normscope import whole_loss
from normscope.learning_rate import growth_limit, is_unstable
from normscope.learning_rate.stability import has_second_moment, short_run
from normscope.learning_rate.thresholds import STEPS
from normscope.problem import Problem, cross_entropy, squared_error
from normscope.training import sgd
from normscope.training.common_rate import CommonRate


@pytest.mark.parametrize(
    ("loss", "limit"),
    [
        (squared_error, 3.0),
        (functional.mse_loss, 3.0),
        (nn.MSELoss(), 3.0),
        (cross_entropy, 1.5),
        (nn.CrossEntropyLoss(), 1.5),
        (lambda output, target: output.sum(), 1.5),
    ],
)
def test_limit_depends_on_the_kind_of_loss(loss, limit):
    assert growth_limit(loss) == limit


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({}, 2 / 4),
        ({"momentum": 0.9}, 2 * 1.9 / 4),
        ({"momentum": 0.9, "nesterov": True}, 2 * 1.9 / (2.8 * 4)),
        ({"weight_decay": 1.0}, 2 / 5),
        ({"momentum": 0.5, "weight_decay": 1.0}, 2 * 1.5 / 5),
    ],
)
@pytest.mark.parametrize(("factor", "expected"), [(0.9, False), (1.1, True)])
def test_quadratic_is_unstable_only_above_its_bound(options, bound, factor, expected):
    problem = quadratic()
    optimizer = sgd(factor * bound, **options)(problem.model.parameters())
    assert is_unstable(problem, optimizer) is expected


def test_unstable_run_ends_at_once():
    problem = quadratic(eigenvalues=(1.0,), shares=(1.0,))
    done = short_run(problem, sgd(5.0)(problem.model.parameters()), None, 0)
    assert done.unstable
    assert done.steps == 2  # the first step makes the loss 16 times as large
    assert done.worst == pytest.approx(16.0)


def test_stable_run_takes_all_steps():
    problem = quadratic()
    done = short_run(problem, sgd(0.1)(problem.model.parameters()), None, 0)
    assert (done.unstable, done.steps, done.rate) == (False, STEPS, 0.1)
    assert done.worst == 1.0


def test_limit_is_crossed_exactly_at_three_times_the_first_loss():
    # one step multiplies the loss by (1 - rate)^2: 3 at rate 1 + sqrt(3)
    for rate, expected in ((1 + 3**0.5 - 1e-3, 2 + 1), (1 + 3**0.5 + 1e-3, 2)):
        problem = quadratic(eigenvalues=(1.0,), shares=(1.0,))
        done = short_run(problem, sgd(rate)(problem.model.parameters()), None, 0)
        assert done.unstable
        assert done.steps == expected


def test_non_finite_loss_is_unstable_whatever_its_sign():
    model = nn.Linear(1, 1)

    def loss(output, target):
        return -1 + 0 * output.sum() / (model.weight.detach().abs().sum() < 1e3)

    problem = Problem(model, loss, (torch.ones(2, 1), torch.ones(2, 1)))
    optimizer = sgd(0.0)(model.parameters())
    assert not is_unstable(problem, optimizer)
    nn.init.constant_(model.weight, 1e4)
    assert is_unstable(problem, optimizer)


@pytest.mark.parametrize("start", [0.0, -1.0])
def test_loss_that_does_not_begin_above_zero_has_no_worst(start):
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    data = torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1)
    problem = Problem(model, lambda output, target: output.mean() + start, data)
    done = short_run(problem, sgd(0.1)(model.parameters()), None, 0)
    assert problem.loss_on(data) < start - 10  # more than ten times the first, but falling
    assert not done.failed
    assert done.worst == 1.0


def test_ramp_sets_the_rate_of_every_step():
    problem = quadratic()
    optimizer = sgd(9.0)(problem.model.parameters())
    done = short_run(problem, optimizer, None, 0, steps=5, rate_at=lambda step: 0.01 * 2**step)
    assert not done.unstable
    assert done.rate == pytest.approx(0.01 * 2**4)


def test_ramp_sets_the_rate_of_every_group():
    problem = Problem(nn.Linear(1, 1), "squared_error", (torch.ones(2, 1), torch.ones(2, 1)))
    optimizer = SGD([{"params": [each]} for each in problem.model.parameters()], lr=9.0)
    short_run(problem, optimizer, None, 0, steps=3, rate_at=lambda step: 0.01 * 2**step)
    assert [group["lr"] for group in optimizer.param_groups] == [0.04, 0.04]


def test_order_of_the_data_follows_the_seed():
    def worst(order):
        problem = Problem(small_network(), "cross_entropy", labelled())
        return short_run(problem, sgd(0.5)(problem.model.parameters()), 8, order).worst

    assert worst(1) == worst(1)
    assert worst(1) != worst(2)


def test_net_that_dies_is_stable_but_fails_and_ends_early():
    problem = mortal()
    done = short_run(problem, sgd(1.0)(problem.model.parameters()), None, 0)
    assert done.died
    assert done.failed
    assert not done.unstable
    assert done.steps == 21  # it was missed at the looks after 10 and 20 steps
    assert torch.unique(problem.model(torch.linspace(0.5, 1.5, 7).view(-1, 1))).numel() == 1
    assert not problem.model._forward_hooks


def test_net_without_biases_can_die_too():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    inputs = torch.tensor([[0.5], [1.5]])
    problem = Problem(model, "squared_error", (inputs, inputs / 2))
    done = short_run(problem, sgd(2.5)(model.parameters()), None, 0)
    assert not any(parameter.grad.any() for parameter in model.parameters())
    assert done.died


def penalized(model, batch):
    """A squared error with an L2 penalty whose minimum is at weights of zero."""
    error = nn.functional.mse_loss(model(batch[0]), batch[1])
    return error + 3 * sum(each.square().sum() for each in model.parameters())


@pytest.mark.parametrize("decay", [5.0, None])
def test_net_that_a_penalty_drives_to_zero_has_not_died(decay):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    data = torch.tensor([[0.5], [1.5]]), torch.tensor([[1.0], [1.1]])
    loss = "squared_error" if decay else whole_loss(penalized)
    problem = Problem(model, loss, data)
    optimizer = sgd(0.1, 0.0, False, decay or 0.0)(model.parameters())
    done = short_run(problem, optimizer, None, 0)
    assert torch.equal(*model(data[0]))
    assert done.shrunk
    assert not done.failed
    assert done.steps == STEPS


def test_net_whose_units_are_dead_has_died_though_its_weights_decay():
    problem = mortal()
    optimizer = sgd(1.0, 0.0, False, 1e-3)(problem.model.parameters())
    done = short_run(problem, optimizer, None, 0)
    assert (done.died, done.shrunk) == (True, False)


def test_net_that_learns_has_not_died():
    problem = mortal()
    done = short_run(problem, sgd(0.05)(problem.model.parameters()), None, 0)
    assert not done.failed
    assert done.steps == STEPS


def test_net_that_has_solved_its_problem_has_not_died():
    line = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(line.weight)
    inputs = torch.tensor([[1.0], [-1.0]])
    done = short_run(
        Problem(line, "squared_error", (inputs, inputs)), sgd(1.0)(line.parameters()), None, 0
    )
    assert line.weight.item() == 1
    assert not done.failed


class Beating(nn.Module):
    """A net whose outputs differ only at the calls whose numbers are given."""

    def __init__(self, *beats):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.calls, self.beats = -1, beats

    def forward(self, inputs):
        self.calls += 1
        return self.scale * (inputs if self.calls in self.beats else torch.ones_like(inputs))


@pytest.mark.parametrize(
    ("beats", "steps"),
    [
        ((0,), 21),  # missed at 10 and at 20
        ((0, 10), 31),
        ((0, 20), 41),  # missed once at 10, then anew at 30 and 40
        ((15,), STEPS),  # never seen to differ, since 15 is between two looks
        (range(0, STEPS, 10), STEPS),
    ],
)
def test_net_has_died_when_two_looks_in_a_row_miss_a_difference(beats, steps):
    problem = Problem(
        Beating(*beats),
        lambda output, target: 1 + 0 * output.sum(),
        (torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1)),
    )
    done = short_run(problem, sgd(0.1)(problem.model.parameters()), None, 0)
    assert (done.steps, done.died) == (steps, steps < STEPS)


class Ending(nn.Module):
    """A line whose output is made into something else."""

    def __init__(self, made):
        super().__init__()
        self.line, self.made = nn.Linear(1, 1), made

    def forward(self, inputs):
        return self.made(self.line(inputs))


def test_single_sample_tells_nothing_of_death():
    calls = count()
    model = Ending(lambda output: output if next(calls) == 0 else output[:1])
    data = torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1)
    problem = Problem(model, lambda output, target: 1 + 0 * output.sum(), data)
    assert not short_run(problem, sgd(0.1)(model.parameters()), None, 0).died


@pytest.mark.parametrize(
    ("made", "loss"),
    [
        (torch.mean, lambda net, batch: 1 + 0 * net(batch[0])),
        (lambda output: (output, output), lambda net, batch: 1 + 0 * net(batch[0])[0].sum()),
    ],
)
def test_output_without_samples_tells_nothing_of_death(made, loss):
    data = torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1)
    problem = Problem(Ending(made), whole_loss(loss), data)
    done = short_run(problem, sgd(0.1)(problem.model.parameters()), None, 0)
    assert (done.failed, done.steps) == (False, STEPS)


def test_parts_of_a_net_that_are_used_now_and_then_have_not_died():
    class Switching(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(1, 1) for _ in range(5))
            self.calls = 0

        def forward(self, inputs):
            self.calls += 1
            return self.parts[self.calls % 5](inputs)

    torch.manual_seed(0)
    model = Switching()
    inputs = torch.randn(8, 1)
    done = short_run(
        Problem(model, "squared_error", (inputs, inputs)), sgd(0.01)(model.parameters()), None, 0
    )
    assert not done.died


class Spike(nn.Module):
    """A loss of 1 that is ``height`` between two of its calls."""

    def __init__(self, first, last, height):
        super().__init__()
        self.span, self.height, self.calls = range(first, last), height, -1

    def forward(self, output, target):
        self.calls += 1
        return (self.height if self.calls in self.span else 1.0) + 0 * output.sum()


@pytest.mark.parametrize(
    ("first", "last", "height", "steps"),
    [
        (10, 40, 9.0, None),  # comes back
        (10, 60, 9.0, 60),  # too late
        (10, 12, 999.0, None),
        (10, 12, 1001.0, 11),  # hopeless
        (10, 12, math.nan, 11),
        (96, 100, 9.0, None),  # above in four of the last ten steps
        (95, 100, 9.0, 100),
        (60, 100, 9.0, 100),
    ],
)
def test_spike_that_comes_back_is_stable_with_a_second_moment(first, last, height, steps):
    model, data = nn.Linear(1, 1), (torch.ones(2, 1), torch.ones(2, 1))
    problem = Problem(model, Spike(first, last, height), data)
    done = short_run(problem, Adam(model.parameters(), lr=0.1), None, 0)
    assert (done.unstable, done.steps) == (steps is not None, steps or STEPS)
    problem = Problem(model, Spike(first, last, height), data)
    assert short_run(problem, SGD(model.parameters(), lr=0.1), None, 0).steps == first + 1


def test_ramp_with_a_second_moment_ends_after_ten_steps_above():
    model, data = nn.Linear(1, 1), (torch.ones(2, 1), torch.ones(2, 1))
    problem = Problem(model, Spike(30, 100, 9.0), data)
    optimizer = Adam(model.parameters(), lr=0.1)
    done = short_run(problem, optimizer, None, 0, rate_at=lambda step: 0.01 * 1.1**step)
    assert (done.unstable, done.steps) == (True, 40)


@pytest.mark.parametrize("kind", [Adam, AdamW, NAdam, RMSprop, Adafactor])
def test_second_moments_are_recognized(kind):
    line = nn.Linear(1, 1)
    assert has_second_moment(kind(line.parameters()))
    assert has_second_moment(CommonRate(kind(line.parameters())))
    assert not has_second_moment(SGD(line.parameters()))


def test_losses_of_a_run_are_kept():
    problem = quadratic()
    done = short_run(problem, sgd(0.1)(problem.model.parameters()), None, 0)
    assert len(done.losses) == done.steps == STEPS
    assert done.losses[0] > done.losses[-1]
    assert "losses" not in done.summary()
    assert done.summary()["rate"] == 0.1
