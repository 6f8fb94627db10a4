"""The rate that trains best: the ladder of rates, its rule, and what it costs."""

import copy
import math
from functools import partial

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, quadratic, small_network

from normscope.data import load
from normscope.learning_rate import choice as module
from normscope.learning_rate import max_learning_rate
from normscope.learning_rate.choice import RateTrial, choose_rate, lowest_point
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.stability import ShortRun
from normscope.learning_rate.thresholds import (
    CHOICE_SPACING,
    EFFORTS,
    HORIZON_FACTOR,
    SECOND_MOMENT_STEPS,
    Effort,
)
from normscope.learning_rate.verification import Verification
from normscope.problem import Problem
from normscope.training import sgd, train

DEFAULT = EFFORTS["default"]


@pytest.mark.parametrize("best", [0.04, 0.05, 0.11, 0.3])
def test_lowest_point_of_a_parabola_is_exact(best):
    losses = {rate: 1 + math.log(rate / best) ** 2 for rate in (0.01, 0.07, 0.2, 1.0)}
    assert lowest_point(losses) == pytest.approx(best)


@pytest.mark.parametrize(
    ("losses", "rate"),
    [
        ({1.0: 2.0}, 1.0),
        ({1.0: 2.0, 2.0: 1.0, 4.0: math.inf}, 2.0),  # a run that failed bounds no parabola
        ({1.0: 1.0, 2.0: 2.0, 4.0: 3.0}, 1.0),
        ({1.0: 1.0, 2.0: 1.0, 4.0: 1.0}, 1.0),
    ],
)
def test_lowest_point_without_a_parabola_is_the_best_rate(losses, rate):
    assert lowest_point(losses) == rate


def scripted(monkeypatch, loss_at, noise=0.0, second_moment=False):
    """Replace runs by losses that a function of the rate gives; returns the rates that were run."""
    rates = []

    def run(ladder, rate):
        rates.append(rate)
        loss = loss_at(rate)
        steps = 9 if math.isinf(loss) else ladder.steps
        losses = [3.0] + [loss + noise * (-1) ** step * rate for step in range(1, steps)]
        return ShortRun(rate, 0, math.isinf(loss), steps, 1.0, losses=tuple(losses))

    monkeypatch.setattr(module._Ladder, "_run", run)
    monkeypatch.setattr(TrainingSetup, "has_second_moment", second_moment)
    return rates


def verification(low=1.0, high=1.6):
    return Verification(low, high, (ShortRun(high, 0, True, 5, 9.0, losses=(3.0, 9.0)),), 0)


def chosen(monkeypatch, loss_at, effort=DEFAULT, predicted=None, found=None, **options):
    rates = scripted(monkeypatch, loss_at, **options)
    setup = TrainingSetup(quadratic(), sgd(1.0), None, 0)
    return choose_rate(setup, found or verification(), effort, predicted), rates


def bowl(best):
    return lambda rate: 1 + math.log(rate / best) ** 2 / 10


@pytest.mark.parametrize("best", [0.5, 0.2, 0.12])
def test_rates_decrease_from_the_largest_that_held_until_the_loss_rises(monkeypatch, best):
    found, rates = chosen(monkeypatch, bowl(best))
    assert rates == pytest.approx([CHOICE_SPACING**-number for number in range(len(rates))])
    assert rates[-1] < best
    assert found.rate == pytest.approx(HORIZON_FACTOR * best)
    assert found.spent == DEFAULT.choice_steps * len(rates) <= DEFAULT.total_steps - 5
    assert [each.rate for each in found.trials] == sorted(rates)


@pytest.mark.parametrize(("spent", "trials"), [(5, 5), (110, 3), (124, 2), (1000, 2)])
def test_ladder_takes_what_the_limit_has_left_of_the_steps(monkeypatch, spent, trials):
    failure = ShortRun(1.6, 0, True, spent, 9.0, losses=(3.0, 9.0))
    ramp = ShortRun(9.0, 0, True, 90, 9.0)  # does not count
    limit = Verification(1.0, 1.6, (ramp, failure), 1)
    found, rates = chosen(monkeypatch, bowl(1e-6), found=limit)
    assert len(rates) == trials
    assert found.rate == pytest.approx(HORIZON_FACTOR * min(rates))


def test_rates_increase_towards_the_limit_if_the_largest_is_best(monkeypatch):
    found, rates = chosen(monkeypatch, lambda rate: 2 - rate, found=verification(1.0, 4.0))
    assert rates[:3] == pytest.approx([1.0, 1 / CHOICE_SPACING, 2.0])  # sqrt(1 * 4)
    assert all(rate < 4 for rate in rates)
    assert found.rate == pytest.approx(verification(1.0, 4.0).limit / 2)


def test_rate_that_fails_is_not_chosen(monkeypatch):
    found, _ = chosen(
        monkeypatch,
        lambda rate: math.inf if rate > 1 else 2 - rate,
        found=verification(1.0, 4.0),
    )
    assert found.rate == pytest.approx(HORIZON_FACTOR)  # below half the limit
    assert found.trials[-1].loss == math.inf
    assert found.to_dict()["trials"][-1]["loss"] is None


@pytest.mark.parametrize(("low", "high", "most"), [(1.0, 1.6, 1.6**0.5 / 2), (1.0, math.inf, 0.8)])
def test_rate_is_at_most_half_the_limit(monkeypatch, low, high, most):
    best = lambda rate: 2.5 - min(rate, 1.0)  # noqa: E731
    assert chosen(monkeypatch, best, found=verification(low, high))[0].rate == pytest.approx(most)


def test_lower_rate_learned_if_the_noise_hides_the_difference(monkeypatch):
    losses = {1.0: 2.0, 0.4: 1.0, 0.16: 1.001, 0.064: 2.0}
    flat = lambda rate: losses[round(rate, 3)]  # noqa: E731
    exact, _ = chosen(monkeypatch, flat)
    assert exact.rate == pytest.approx(HORIZON_FACTOR * lowest_point(losses))
    noisy, _ = chosen(monkeypatch, flat, noise=0.1)
    assert noisy.rate == pytest.approx(HORIZON_FACTOR * 0.16)


@pytest.mark.parametrize("best", [1.0, 0.4, 0.16])
def test_lower_rates_are_tried_while_nothing_is_learned(monkeypatch, best):
    plateau = {1.0: 3.0, 0.4: 3.0, 0.16: 3.0, 0.064: 2.0, 0.0256: 2.5} | {best: 2.99}
    found, _ = chosen(
        monkeypatch,
        lambda rate: plateau[round(rate, 4)],
        Effort("test", 1, (), 100, total_steps=1000),
    )
    assert 0.0256 < found.rate / HORIZON_FACTOR < 0.16


@pytest.mark.parametrize(("loss", "learned"), [(3.0, False), (2.95, False), (2.5, True)])
@pytest.mark.parametrize("effort", EFFORTS)
def test_choice_records_whether_a_rate_lowered_the_loss(monkeypatch, loss, learned, effort):
    found, rates = chosen(monkeypatch, lambda rate: loss, EFFORTS[effort])
    assert len(rates) == 2 or effort != "quick"
    assert found.learned == learned


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_strong_weight_decay_is_named_if_no_rate_lowers_the_loss(momentum):
    problem, found = decayed(1.0, momentum)
    assert "none of 4 rates lowered the loss" in found.text(200)
    (note,) = (each for each in found.notes if "No rate tried lowered the loss" in each)
    assert "less weight decay" in note
    losses = trained_losses(problem, found.recommended, momentum, 1.0)
    assert min(losses[-20:]) > 0.97 * losses[0]  # as the note says


def test_rate_that_learns_is_recommended_under_moderate_weight_decay():
    problem, found = decayed(0.1, 0.0)
    held = [each for each in found.choice.trials if math.isfinite(each.loss)]
    assert held[-1].loss > 2.25  # near the limit the weights decay
    assert found.choice.learned
    assert not any("lowered the loss" in note for note in found.notes)
    losses = trained_losses(problem, found.recommended, 0.0, 0.1)
    assert sum(losses[-20:]) / 20 < 0.7 * losses[0]


def decayed(weight_decay, momentum):
    """The digits, a plain network, and its advice with weight decay."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.ReLU()]
    model = torch.nn.Sequential(torch.nn.Flatten(), *layers, torch.nn.Linear(32, 10))
    problem = Problem(model, "cross_entropy", load("digits").train)
    options = {"momentum": momentum, "weight_decay": weight_decay, "batch_size": 64}
    return problem, max_learning_rate(model, problem.loss, problem.data, **options)


def trained_losses(problem, rate, momentum, weight_decay, steps=200):
    optimizer = sgd(rate, momentum, weight_decay=weight_decay)
    return [step.loss for step in train(problem, optimizer, steps, batch_size=64, seed=3)]


def test_quick_says_that_no_rate_lowered_the_loss():
    inputs, targets = torch.ones(8, 1), torch.arange(8.0).view(8, 1) + 100
    line = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(line.bias, 103.5)
    torch.nn.init.zeros_(line.weight)  # the mean already: nothing is left to learn
    found = max_learning_rate(
        *(line, "squared_error", (inputs, targets)), effort="quick", objective="fastest"
    )
    assert found.recommended == found.choice.lowest / 3
    assert "below the lowest rate tried" in str(found)
    assert "below the lowest rate tried" in found.explanation
    assert any("No rate tried lowered the loss in 50 steps" in note for note in found.notes)


def test_second_moment_starts_far_below_the_predicted_limit(monkeypatch):
    found, rates = chosen(monkeypatch, bowl(0.01), predicted=0.4, second_moment=True)
    assert rates[0] == pytest.approx(0.02)
    assert found.rate == pytest.approx(HORIZON_FACTOR * 0.01)


@pytest.mark.parametrize("best", [0.14, 0.04, 0.02, 0.008])
def test_second_moment_has_both_neighbours_of_the_best_within_the_budget(monkeypatch, best):
    held = ShortRun(0.8, 0, False, SECOND_MOMENT_STEPS, 1.0, losses=(3.0,) * SECOND_MOMENT_STEPS)
    limit = Verification(0.8, math.inf, (held,), 0)
    options = {"predicted": 0.4, "found": limit, "second_moment": True}
    found, rates = chosen(monkeypatch, bowl(best), **options)
    assert rates[:2] == pytest.approx([0.02, 0.02 * CHOICE_SPACING])
    assert min(rates) < best < max(rates)
    assert found.untried == ""
    assert found.spent + SECOND_MOMENT_STEPS <= DEFAULT.total_steps


@pytest.mark.parametrize(("best", "side"), [(5.0, "higher"), (1e-5, "lower")])
def test_side_that_the_steps_did_not_reach_is_named(monkeypatch, best, side):
    held = ShortRun(9.0, 0, False, 110, 1.0, losses=(3.0,) * 20)
    limit = Verification(9.0, math.inf, (held,), 0)
    options = {"predicted": 0.4, "found": limit, "second_moment": True}
    found, rates = chosen(monkeypatch, bowl(best), **options)
    assert len(rates) == 3
    assert found.untried == side


def test_limit_above_the_best_rate_counts_as_its_neighbour(monkeypatch):
    found, _ = chosen(monkeypatch, bowl(9.0), found=verification(1.0, 1.6))
    assert found.untried == ""


def test_thorough_tries_the_best_again_with_more_steps(monkeypatch):
    thorough = EFFORTS["thorough"]
    found, rates = chosen(monkeypatch, bowl(0.2), thorough)
    again = rates[-3:]
    assert len(set(again)) == 3
    assert {each.steps for each in found.trials} == {thorough.choice_steps, thorough.final_steps}
    assert found.steps == thorough.final_steps
    assert found.rate == pytest.approx(0.2)  # no correction for the horizon


def test_run_that_verified_the_limit_is_used_again(monkeypatch):
    held = ShortRun(1.0, 0, False, 100, 1.0, losses=(3.0, *[1.5] * 99))
    runs = (ShortRun(1.6, 0, True, 5, 9.0, losses=(3.0, 9.0)), held)
    found, rates = chosen(monkeypatch, bowl(0.3), found=Verification(1.0, 1.6, runs, 0))
    assert 1.0 not in rates
    assert found.trials[-1] == RateTrial(1.0, 50, 1.5, reused=True)
    assert found.spent == 50 * len(rates)


def test_order_that_another_seed_made_is_not_used_again(monkeypatch):
    runs = (ShortRun(1.0, 1, False, 100, 1.0, losses=(3.0, *[1.5] * 99)),)
    _, rates = chosen(monkeypatch, bowl(0.3), found=Verification(1.0, 1.6, runs, 0))
    assert rates[0] == 1.0


def mean_loss(model, rate, seed, make=None):
    """Train a copy as a plain loop does; the mean loss of the last 12 of 50 steps."""
    net = copy.deepcopy(model).train()
    x, y = labelled()
    optimizer = (make or torch.optim.SGD)(net.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    while len(losses) < 50:
        for rows in torch.randperm(64, generator=generator).split(16):
            loss = torch.nn.functional.cross_entropy(net(x[rows]), y[rows])
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return sum(losses[38:50]) / 12


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_losses_are_those_of_a_plain_training_loop(make):
    model = small_network()
    options = {"batch_size": 16, "optimizer": partial(make, lr=0.1), "seed": 2}
    advice = max_learning_rate(model, "cross_entropy", labelled(), **options)
    assert advice.objective == "fastest"
    assert advice.recommended == advice.choice.rate
    for each in advice.choice.trials:
        assert each.loss == pytest.approx(mean_loss(model, each.rate, 2, make), rel=1e-4)
    best = min(advice.choice.trials, key=lambda each: each.loss)
    assert best.rate / CHOICE_SPACING / 2 < advice.recommended <= best.rate * CHOICE_SPACING


def test_choice_leaves_the_model_alone():
    model = small_network()
    before = copy.deepcopy(model.state_dict())
    problem = Problem(model, "cross_entropy", labelled())
    setup = TrainingSetup(problem, sgd(1.0), 16, 0)
    choose_rate(setup, verification(0.5, 0.8), DEFAULT)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_choice_is_a_table_and_plain_data(monkeypatch):
    found, _ = chosen(monkeypatch, bowl(0.2))
    assert str(found).startswith("Loss after 50 steps; chosen 0.16")
    plain = found.to_dict()
    assert plain["rate"] == found.rate
    assert [each["rate"] for each in plain["trials"]] == [each.rate for each in found.trials]


def test_losses_are_drawn_against_rates(monkeypatch):
    found, rates = chosen(
        monkeypatch,
        lambda rate: math.inf if rate > 1 else 2 - rate,
        found=verification(1.0, 4.0),
    )
    axes = found.plot()
    points, line = axes.lines
    assert list(points.get_xdata()) == sorted(rates)[:-1]  # not the one that failed
    assert list(points.get_ydata()) == [each.loss for each in found.trials[:-1]]
    assert line.get_xdata()[0] == found.rate
    assert axes.get_ylabel() == "loss after 50 steps"
