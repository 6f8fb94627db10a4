import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.learning_rate.problems import labelled, mortal, quadratic, small_network

from normscope.errors import StateError
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.stability import ShortRun
from normscope.learning_rate.thresholds import EFFORTS
from normscope.learning_rate.verification import (
    Verification,
    _Search,
    _Verdict,
    bracket_limit,
    verify_limit,
)
from normscope.problem import Problem
from normscope.training import sgd
from normscope.training.batches import batch_source

BUDGET = EFFORTS["thorough"].limit_steps
UNSTABLE = {_Verdict.UNSTABLE}
FAILED = {_Verdict.UNSTABLE, _Verdict.COLLAPSED}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("guess", [1.0, 0.03, 30.0, 1e4])
def test_onset_of_a_quadratic_is_found_from_any_guess(momentum, guess):
    bound = 2 * (1 + momentum) / 4
    found = verify_limit(TrainingSetup(quadratic(), sgd(1.0, momentum), None, 0), guess * bound)
    assert found.steps <= BUDGET
    assert found.low <= 1.1 * bound
    assert found.high >= 0.95 * bound
    assert found.onset == pytest.approx(bound, rel=0.15)


@pytest.mark.parametrize(("guess", "ramps"), [(1.0, 1), (30.0, 2), (1e8, 4)])
def test_ramp_that_begins_too_high_is_repeated_from_64_times_lower(guess, ramps):
    found = verify_limit(TrainingSetup(quadratic(), sgd(1.0), None, 0), guess * 0.5)
    assert found.ramps == ramps
    starts = [guess * 0.5 / 8 / 64**place for place in range(ramps)]
    for start, ramp in zip(starts, found.all_runs, strict=False):
        assert ramp.rate == pytest.approx(start * 1.08 ** (ramp.steps - 1))
    assert found.low <= 1.1 * 0.5 <= 1.2 * found.high


def test_budget_holds_on_a_net_and_unstable_runs_end_at_once():
    problem = Problem(small_network(), "cross_entropy", labelled())
    found = verify_limit(TrainingSetup(problem, sgd(1.0), 16, 0), 1.0)
    runs = found.all_runs[found.ramps :]
    assert found.steps == sum(each.steps for each in found.all_runs) <= BUDGET
    assert all(each.steps == 100 for each in runs if not each.unstable)
    assert any(each.unstable and each.steps < 100 for each in runs)
    assert [each.order for each in runs[:2]] == [0, 1]
    assert found.low < found.onset < found.high


@pytest.mark.parametrize("budget", [20, 250])  # the ramp alone would take 54
def test_tight_budget_is_kept(budget):
    bench = TrainingSetup(quadratic(), sgd(1.0), None, 0)
    assert verify_limit(bench, 0.5, budget=budget).steps <= budget


def test_loss_that_is_never_unstable_has_no_end():
    model = torch.nn.Linear(1, 1)
    problem = Problem(model, lambda f, y: 1 + 1e-30 * f.sum(), (torch.ones(2, 1), torch.ones(2, 1)))
    found = verify_limit(TrainingSetup(problem, sgd(1.0), None, 0), 0.1)
    assert math.isinf(found.high)
    assert found.onset == found.low > 1
    assert found.steps <= BUDGET


def test_every_run_starts_from_the_same_weights():
    problem = quadratic()
    before = problem.model.weight.detach().clone()
    found = verify_limit(TrainingSetup(problem, sgd(1.0), None, 0), 0.5)
    assert torch.equal(problem.model.weight, before)
    again = verify_limit(TrainingSetup(problem, sgd(1.0), None, 0), 0.5)
    assert again.all_runs == found.all_runs


def test_runs_are_told():
    events = []
    found = verify_limit(TrainingSetup(quadratic(), sgd(1.0), None, 0), 0.5, events.append)
    assert events[0].detail == "run 1: ramp from 0.0625"
    numbered = enumerate(events[1:], 2)
    assert all(event.detail.startswith(f"run {number} at ") for number, event in numbered)
    assert len(events) == len(found.all_runs)  # as many as in the table
    used = [sum(each.steps for each in found.all_runs[:number]) for number in range(len(events))]
    assert [event.done for event in events] == used
    assert {(e.stage, e.total, e.unit, e.total_is) for e in events} == {
        ("short runs", 600, "steps", "bound")
    }


def test_rates_at_which_the_net_dies_are_beyond_the_limit_but_not_beyond_the_onset():
    problem = mortal()
    found = verify_limit(TrainingSetup(problem, sgd(1.0), None, 0), 1.0)
    runs = found.all_runs[found.ramps :]
    assert found.lowest_collapse == min(each.rate for each in runs if each.died)
    assert found.high == min((each.rate for each in runs if each.unstable), default=math.inf)
    assert 0 < found.limit < found.lowest_collapse < found.onset  # the loss of a dead net is stable
    assert found.ends[1] <= 1.05 * found.ends[0]  # its death is enclosed as closely
    assert found.steps <= BUDGET


class Scripted(_Search):
    """A search whose runs are not made: ``outcome`` of a rate and an order says what they show."""

    def __init__(self, outcome, budget=BUDGET):
        super().__init__(fickle((1.0,) * 3), budget, lambda text: None)
        self.outcome = outcome

    def run(self, rate, order, steps=100):
        shown = self.outcome(rate, order)
        steps = {"held": 100, "collapsed": 30, "unstable": 10}[shown]
        done = ShortRun(rate, order, shown == "unstable", steps, 1.0, died=shown == "collapsed")
        self.all_runs.append(done)
        return done


def brittle(rate, order):
    """It dies from 1 on and is unstable from 4 on."""
    return "held" if rate < 1 else "collapsed" if rate < 4 else "unstable"


def judged(search):
    return {rate: verdict.value for rate, verdict in search.verdicts.items()}


def test_search_goes_down_from_a_death_since_the_net_may_break_below():
    search = Scripted(
        lambda rate, order: "collapsed" if rate > 4 else "unstable" if rate > 2 else "held"
    )
    search.go_down(5.0)
    assert list(judged(search).values()) == ["collapsed", "unstable", "held"]
    assert search.enclosing(UNSTABLE) == pytest.approx((5 / 1.6**2, 5 / 1.6))
    search.go_up()
    assert max(search.verdicts) == 5.0  # an onset is enclosed already


def test_search_goes_up_through_deaths_until_the_loss_is_unstable():
    search = Scripted(
        lambda rate, order: "held" if rate < 1 else "collapsed" if rate < 4 else "unstable"
    )
    search.go_down(0.9)
    search.go_up()
    assert list(judged(search).values()) == [
        "held",
        "collapsed",
        "collapsed",
        "collapsed",
        "unstable",
    ]
    assert search.enclosing(UNSTABLE) == pytest.approx((0.9 * 1.6**3, 0.9 * 1.6**4))
    assert search.enclosing(FAILED) == pytest.approx((0.9, 0.9 * 1.6))


@pytest.mark.parametrize(
    ("shown", "verdict"),
    [
        (("unstable", "collapsed", "unstable"), "unstable"),
        (("unstable", "collapsed", "collapsed"), "unstable"),
        (("collapsed", "unstable", "held"), "unstable"),
        (("held", "collapsed"), "collapsed"),
        (("unstable", "held", "held"), "held"),
        (("collapsed", "collapsed"), "collapsed"),
    ],
)
def test_death_is_no_instability_and_does_not_speak_against_one(shown, verdict):
    search = Scripted(lambda rate, order: shown[order])
    assert search.judge(1.0).value == verdict
    assert len(search.all_runs) == len(shown)


def test_rates_around_the_onset_are_halved_before_those_around_the_death():
    search = Scripted(
        lambda rate, order: "held" if rate < 1 else "collapsed" if rate < 4 else "unstable"
    )
    search.verdicts.update(
        {
            0.5: _Verdict.HELD,
            2.0: _Verdict.COLLAPSED,
            3.9: _Verdict.COLLAPSED,
            4.05: _Verdict.UNSTABLE,
        }
    )
    search.bisect(UNSTABLE)
    assert search.all_runs == []
    search.bisect(FAILED)
    assert [each.rate for each in search.all_runs[:2]] == [1.0, 1.0]
    assert search.enclosing(FAILED)[0] >= 0.5
    assert search.enclosing(FAILED)[1] == 1.0


def test_batches_whose_losses_differ_without_training_are_refused():
    inputs = torch.ones(8, 1)
    targets = torch.logspace(-1, 1, 8).view(8, 1)
    line = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(line.weight)
    torch.nn.init.zeros_(line.bias)
    problem = Problem(line, "squared_error", (inputs, targets))
    events = []
    with pytest.raises(StateError, match=r"without any training.*larger batches"):
        verify_limit(TrainingSetup(problem, sgd(1.0), 1, 0), 1.0, events.append)
    assert re.match(r"run \d+: the losses without training", events[-1].detail)


def test_standstill_is_asked_of_the_order_that_failed():
    """The sample with the large loss comes first in the first order, which therefore holds."""
    large = batch_source_order(0)

    def loss(output, target):
        return 1 + 9 * (target == large).double().mean() + 0 * output.sum()

    data = torch.ones(8, 1), torch.arange(8)
    problem = Problem(torch.nn.Linear(1, 1), loss, data)
    with pytest.raises(StateError, match="10 times that of the first without any training"):
        verify_limit(TrainingSetup(problem, sgd(1.0), 1, 0), 1.0)


class Fickle(torch.nn.Module):
    """A loss that breaks above a rate of its own for each order of the data.

    The first sample of the first batch tells the order, the first move of the weight the rate.
    ``after`` so many steps it breaks.
    """

    def __init__(self, onsets, after=1):
        super().__init__()
        self.onsets, self.order = onsets, None
        self.after, self.steps = after, 0

    def forward(self, output, target):
        moved = (output - 1).abs().max().detach()
        if moved == 0:
            self.order, self.steps = int(target[0]), 0
            return 1 + (output - 1).mean()
        self.steps += 1
        broken = moved >= self.onsets[self.order] and self.steps >= self.after
        return 1 + 9 * broken + 0 * output.sum()


def fickle(onsets, after=1):
    """A workbench whose loss is `Fickle`."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    first = {batch_source_order(order): order for order in range(3)}
    assert len(first) == 3  # the orders begin with different samples
    targets = torch.tensor([first.get(place, 0) for place in range(8)])
    problem = Problem(model, Fickle(onsets, after), (torch.ones(8, 1), targets))
    return TrainingSetup(problem, sgd(1.0), 2, 0)


@pytest.mark.parametrize("onsets", [(1.0, 3.0, 9.0), (9.0, 3.0, 1.0), (3.0, 9.0, 1.0)])
def test_onset_is_the_median_over_orders_of_the_data(onsets):
    found = verify_limit(fickle(onsets), 2.0)
    assert 2.3 < found.onset < 4.0  # not 1, not 9


@pytest.mark.parametrize("after", [19, 20])
def test_median_over_orders_counts_however_late_they_fail(after):
    found = verify_limit(fickle((1.0, 3.0, 9.0), after), 0.02)
    assert 2.0 < found.onset < 4.5


@pytest.mark.parametrize(
    ("onsets", "fails"),
    [((0.01, 3.0, 3.0), False), ((3.0, 0.01, 3.0), False), ((0.01, 3.0, 0.01), True)],
)
def test_one_order_that_fails_late_is_outvoted(onsets, fails):
    search = _Search(fickle(onsets, after=40), BUDGET, lambda text: None)
    assert (search.judge(1.0) is _Verdict.UNSTABLE) is fails
    assert len(search.all_runs) == 3


def test_rates_go_down_faster_while_all_orders_fail_late():
    search = _Search(fickle((1.0, 1.0, 1.0), after=40), BUDGET, lambda text: None)
    search.go_down(4.0)
    assert sorted(search.verdicts, reverse=True) == pytest.approx([4.0, 1.6, 0.64])


@pytest.mark.parametrize(("budget", "fails"), [(150, True), (250, False)])
def test_tie_of_two_orders_is_a_failure_where_the_steps_ran_out(budget, fails):
    search = _Search(fickle((1.0, 9.0, 9.0)), budget, lambda text: None)
    assert (search.judge(3.0) is _Verdict.UNSTABLE) is fails
    assert [each.failed for each in search.all_runs] == [True, False, False][: 2 + (not fails)]


@pytest.fixture
def asked(monkeypatch):
    """The runs that a search asks for, none of which is made; each holds."""
    found = []

    def run(search, rate, order, steps=100):
        found.append((rate, order))
        search.all_runs.append(ShortRun(rate, search.setup.seed + order, False, 100, 1.0))
        return search.all_runs[-1]

    monkeypatch.setattr(_Search, "run", run)
    return found


@pytest.mark.parametrize(("budget", "runs"), [(200, [(0.0, 2)]), (110, [])])
def test_standstill_is_asked_of_the_last_failure_if_steps_are_left(asked, budget, runs):
    search = _Search(TrainingSetup(quadratic(), sgd(1.0), None, 7), budget, lambda text: None)
    search.all_runs += [ShortRun(3.0, 8, True, 10, 9.0), ShortRun(2.0, 9, True, 10, 9.0)]
    search._check_untrained()
    assert asked == runs


@pytest.mark.parametrize("verdict", _Verdict)
def test_nothing_is_halved_without_both_ends(asked, verdict):
    search = _Search(TrainingSetup(quadratic(), sgd(1.0), None, 0), BUDGET, lambda text: None)
    search.verdicts[1.0] = verdict
    search.bisect(UNSTABLE)
    search.bisect(FAILED)
    assert asked == []


def test_ends_are_around_the_smallest_rate_that_failed():
    search = _Search(TrainingSetup(quadratic(), sgd(1.0), None, 0), BUDGET, lambda text: None)
    held, died, unstable = _Verdict
    search.verdicts.update({0.5: held, 0.7: held, 0.8: died, 1.0: unstable, 2.0: held, 3.0: died})
    assert search.enclosing(UNSTABLE) == (0.8, 1.0)
    assert search.enclosing(FAILED) == (0.7, 0.8)


def test_data_are_not_looked_at_if_the_net_only_died(asked):
    search = _Search(TrainingSetup(quadratic(), sgd(1.0), None, 0), BUDGET, lambda text: None)
    search.all_runs += [ShortRun(9.0, 0, True, 9, 3.0), ShortRun(3.0, 0, False, 60, 1.0, died=True)]
    search.ramps = 1
    search._check_untrained()
    assert asked == []


def test_interval_is_halved_to_five_percent():
    found = verify_limit(TrainingSetup(quadratic(), sgd(1.0), None, 0), 0.5)
    assert found.steps <= BUDGET - 100  # it did not end for want of steps
    assert found.high <= 1.05 * found.low


@pytest.mark.parametrize(("failures", "looked"), [(5, 0), (6, 1), (8, 1)])
def test_data_are_looked_at_once_after_six_failures_in_a_row(failures, looked):
    onset, end = 3.0, 1.08**99 / 8  # where the ramp ends, as a multiple of the guess
    guess = onset * 1.6 ** (failures - 0.5) / (end / 2)
    found = verify_limit(fickle((onset,) * 3), guess)
    assert sum(each.rate == 0 for each in found.all_runs) == looked
    assert found.low < onset <= found.high


def test_data_are_not_looked_at_once_a_rate_has_held():
    problem = quadratic(eigenvalues=(4.0,), shares=(1.0,))  # a ramp from near its bound breaks soon
    found = verify_limit(TrainingSetup(problem, sgd(1.0), None, 0), 8 * 0.42, budget=250)
    assert [each.failed for each in found.all_runs[:2]] == [True, False]
    assert all(each.rate > 0 for each in found.all_runs)


def batch_source_order(order):
    """The place of the first sample that a training draws with this seed."""
    places = torch.arange(8).float().view(8, 1)
    problem = Problem(torch.nn.Linear(1, 1), "squared_error", (places, places))
    return int(batch_source(problem, 2, order, drop_last=True).draw()[0][0])


@pytest.mark.parametrize("batch_size", [None, 2])
def test_batches_that_no_order_changes_are_run_once(batch_size):
    problem = quadratic()  # of two samples
    found = verify_limit(TrainingSetup(problem, sgd(1.0), batch_size, 0), 0.5)
    rates = [each.rate for each in found.all_runs[found.ramps :]]
    assert len(rates) == len(set(rates))


def runs(*outcomes):
    """A verification of a ramp and runs (rate, whether it failed)."""
    runs = [ShortRun(rate, 0, failed, 50 if failed else 100, 1.0) for rate, failed in outcomes]
    failed = [rate for rate, broke in outcomes if broke]
    return Verification(
        0.1, max(failed, default=math.inf), (ShortRun(1e-9, 0, True, 9, 3), *runs), 1
    )


@pytest.mark.parametrize(
    ("outcomes", "lowest", "spread"),
    [
        ([(1.0, False), (2.0, True)], 2.0, 1.0),
        ([(1.0, False), (4.0, True), (3.0, False), (2.0, True)], 2.0, 1.5),
        ([(1.0, False)], math.inf, 1.0),
        ([(1.0, True)], 1.0, 1.0),
    ],
)
def test_lowest_failure_and_spread_are_those_of_the_runs_at_fixed_rates(outcomes, lowest, spread):
    found = runs(*outcomes)
    assert found.lowest_failure == lowest
    assert found.spread == spread


def test_net_that_dies_fails_and_is_not_late():
    dead = ShortRun(0.5, 0, False, 60, 1.0, died=True)
    assert not dead.is_late
    assert Verification(0.1, 0.5, (dead,), 0).lowest_failure == 0.5


def dying(*outcomes):
    """Runs of a net, (rate, order, what it showed), that was unstable at 0.9 and not at 0.8."""
    runs = [
        ShortRun(rate, order, shown == "unstable", 60, 1.0, died=shown == "died")
        for rate, order, shown in outcomes
    ]
    ramp = ShortRun(1e-9, 0, False, 9, 1.0, died=True)
    return Verification(0.8, 0.9, (ramp, *runs), 1)


def test_limit_is_below_the_onset_where_the_net_dies_first():
    found = dying((0.8, 0, "died"), (0.5, 0, "held"), (0.5, 1, "died"), (0.2, 0, "held"))
    assert (found.lowest_collapse, found.collapsed_first, found.ends) == (0.5, True, (0.2, 0.5))
    assert found.limit == pytest.approx(math.sqrt(0.1))
    assert found.onset == pytest.approx(math.sqrt(0.72))
    assert found.lowered_bound(1.0) == pytest.approx(found.limit / 2)


@pytest.mark.parametrize("rate", [0.9, 1.5])
def test_net_that_dies_beyond_the_onset_changes_nothing(rate):
    found = dying((0.8, 0, "held"), (0.9, 0, "unstable"), (rate, 1, "died"))
    assert (found.lowest_collapse, found.collapsed_first, found.ends) == (rate, False, (0.8, 0.9))
    assert found.limit == found.onset


def test_limit_of_a_net_that_lived_at_no_rate_is_the_lowest_death():
    found = dying((0.8, 0, "died"), (0.3, 0, "died"), (0.4, 0, "held"))
    assert (found.ends, found.limit) == ((0.0, 0.3), 0.3)


def test_net_that_never_died_has_no_fatal_rate():
    found = dying((0.8, 0, "held"), (0.9, 0, "unstable"))
    assert math.isinf(found.lowest_collapse)
    assert not found.collapsed_first


@pytest.mark.parametrize(
    ("low", "high", "onset"), [(0.2, 0.8, 0.4), (0.0, 0.3, 0.3), (0.7, math.inf, 0.7)]
)
def test_onset_is_the_middle_or_the_end_that_was_found(low, high, onset):
    assert Verification(low, high, (), 0).onset == pytest.approx(onset)


def test_table_tells_ramps_from_runs():
    html = runs((0.2, False), (0.3, True))._repr_html_()
    assert (html.count("ramp"), html.count("fixed rate")) == (1, 2)


@given(
    outcomes=st.lists(st.tuples(st.floats(1e-3, 1e3), st.booleans()), min_size=1),
    bound=st.floats(1e-3, 1e3),
)
def test_safe_rate_is_below_every_failure_by_what_the_orders_differ(outcomes, bound):
    found = runs(*outcomes)
    lowered = found.lowered_bound(bound)
    failures = [rate for rate, failed in outcomes if failed]
    held = [rate for rate, failed in outcomes if not failed]
    if not failures or min(failures) >= bound:
        assert lowered == min(bound, found.limit)
        return
    assert lowered <= min(failures) / 2
    assert lowered <= found.onset / 2
    if held:
        assert lowered * max(held) <= min(failures) ** 2 * (1 + 1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("guess", [0.1, 0.5, 1.0, 3.0, 100.0])
def test_bracket_encloses_the_limit_of_a_quadratic(momentum, guess):
    bound = 2 * (1 + momentum) / 4
    setup = TrainingSetup(quadratic(), sgd(1.0, momentum), None, 0)
    found = bracket_limit(setup, guess * bound, budget=400)
    assert found.low <= 1.02 * bound
    assert found.high >= bound
    assert found.high <= 1.601 * found.low
    low, high = found.interval
    assert low <= bound <= high
    assert found.margin == 1.0  # data that is one batch has one order


def test_bracket_costs_little_more_than_one_stable_run():
    problem = Problem(small_network(), "cross_entropy", labelled())
    found = bracket_limit(TrainingSetup(problem, sgd(1.0), 16, 0), 2.0)
    assert found.steps <= EFFORTS["default"].limit_steps
    assert {each.order for each in found.runs} == {0}
    assert found.margin > 1
    low, high = found.interval
    assert low < found.ends[0] < found.limit < found.ends[1] < high


@pytest.mark.parametrize("budget", [45, 80])
def test_bracket_keeps_a_small_budget_and_widens_its_interval(budget):
    found = bracket_limit(TrainingSetup(quadratic(), sgd(1.0), None, 0), 0.5, budget=budget)
    assert found.steps <= budget
    held = [each for each in found.runs if not each.failed]
    assert held[-1].steps < 100
    assert found.interval[0] == pytest.approx(found.low / 1.5)


def steps_of(runs):
    return sum(each.steps for each in runs)


def test_last_run_of_a_bracket_may_exceed_its_budget():
    setup = TrainingSetup(quadratic(), sgd(1.0), None, 0)
    found = bracket_limit(setup, 0.4, budget=30, last=50)
    *failed, held = found.runs
    assert all(each.unstable for each in failed)
    assert (held.failed, held.steps) == (False, 50)
    late = bracket_limit(setup, 0.4, budget=steps_of(failed) + 5, last=50)
    assert [each.steps for each in late.runs] == [each.steps for each in found.runs]
    none_failed = bracket_limit(setup, 0.01, budget=30, last=50)
    assert none_failed.steps <= 30


def test_few_steps_above_a_rate_that_held_show_only_failures():
    setup = TrainingSetup(quadratic(), sgd(1.0), None, 0)
    open_ended = bracket_limit(setup, 0.05, budget=110)  # 0.1 and 0.25 hold, the limit is 0.5
    assert [each.steps for each in open_ended.runs] == [100, 10]
    assert open_ended.ends == (0.1, math.inf)
    closed = bracket_limit(setup, 0.2, budget=110)  # 0.4 and 1.0
    assert closed.runs[-1].unstable
    assert closed.ends == pytest.approx((0.4, 1.0))


def test_bracket_without_a_good_guess_begins_with_a_ramp():
    setup = TrainingSetup(quadratic(), sgd(1.0), None, 0)
    found = bracket_limit(setup, 1e-3, is_near=False)
    assert found.ramps == 1
    assert found.low <= 1.02 * 0.5 <= 1.02 * found.high
    assert found.steps <= EFFORTS["default"].limit_steps + 100


def test_bracket_refuses_batches_whose_losses_differ_without_training():
    targets = torch.logspace(-1, 1, 8).view(8, 1)
    line = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(line.weight)
    torch.nn.init.zeros_(line.bias)
    problem = Problem(line, "squared_error", (torch.ones(8, 1), targets))
    with pytest.raises(StateError, match=r"without any training.*larger batches"):
        bracket_limit(TrainingSetup(problem, sgd(1.0), 1, 0), 1.0)


@pytest.mark.parametrize(("budget", "margin"), [(450, 1.4), (550, 1.0)])
def test_rate_judged_by_one_order_has_the_margin_of_one_order(budget, margin):
    """Each stable run has 100 steps; the fifth rate gets one run or two."""
    found = verify_limit(fickle((1e9,) * 3), 1.0, budget=budget)
    orders = [each.order for each in found.runs if each.rate == found.low]
    assert len(orders) == (1 if margin > 1 else 2)
    assert found.margin == margin
    assert found.interval == (pytest.approx(found.low / margin), math.inf)


def test_tie_where_the_steps_ran_out_widens_the_interval():
    found = verify_limit(fickle((1.0, 9.0, 9.0)), 0.03, budget=300)  # 100 of them for the ramp
    tied = [each.failed for each in found.runs if each.rate == found.high]
    assert tied == [True, False]
    assert found.margin == 1.4


@pytest.mark.parametrize("ramp", [2.84, 5.0])
def test_ramp_that_failed_below_a_rate_that_held_is_in_the_interval(ramp):
    ramps = (ShortRun(ramp, 0, True, 20, 2.0),)
    held = tuple(ShortRun(3.6, order, False, 100, 1.0) for order in range(2))
    found = Verification(3.6, math.inf, (*ramps, *held), 1)
    assert found.known_failure == ramp
    assert found.interval == (min(ramp, 3.6), math.inf)


def test_order_that_was_outvoted_is_in_the_interval():
    found = verify_limit(fickle((1.0, 9.0, 9.0)), 0.02)
    assert found.lowest_failure < found.low
    assert found.interval[0] == found.lowest_failure
