from itertools import pairwise

import pytest

from normscope.errors import ArgumentTypeError, InputError
from normscope.probes.schedule import Schedule


class Clock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


def steps_measured(schedule, clock, count, cost, pace):
    measured = []
    for step in range(count):
        clock.time += pace
        if schedule.due(step):
            measured.append(step)
            with schedule.measuring():
                clock.time += cost
    return measured


def test_every_so_many_steps():
    assert steps_measured(Schedule(4), Clock(), 10, 1, 1) == [0, 4, 8]


def test_given_steps_replace_every():
    assert steps_measured(Schedule(steps=[7, 2, 2]), Clock(), 10, 1, 1) == [2, 7]


@pytest.mark.parametrize("budget", [0.05, 0.1, 0.5])
def test_budget_holds_the_overhead(budget):
    clock = Clock()
    schedule = Schedule(budget=budget, clock=clock)
    measured = steps_measured(schedule, clock, 4000, cost=2.0, pace=1.0)
    assert measured[0] == 0
    assert schedule.overhead == pytest.approx(budget, rel=0.05)
    gaps = [after - before for before, after in pairwise(measured)]
    # the first gap pays for the first measurement too, which nothing had been saved for
    assert gaps[0] == 2 * round(2.0 / budget)
    assert set(gaps[1:]) == {round(2.0 / budget)} == {schedule.every}


def test_budget_counts_the_coming_measurement():
    clock = Clock()
    schedule = Schedule(budget=0.1, clock=clock)
    highest = 0.0
    for step in range(1000):
        clock.time += 1.0
        if schedule.due(step):
            with schedule.measuring():
                clock.time += 10.0
            highest = max(highest, schedule.overhead) if step else highest
    assert 0 < highest <= 0.1 + 1e-12


def test_budget_counts_the_look_at_the_next_step():
    clock = Clock()
    schedule = Schedule(budget=0.1, clock=clock)
    after = False
    for step in range(1000):
        clock.time += 1.0
        due = schedule.due(step)
        if due or after:
            with schedule.measuring():
                clock.time += 4.0
        if step > 1 and after:
            assert schedule.overhead <= 0.1 + 1e-12
        after = due


def test_budget_adapts_to_a_slower_training():
    clock = Clock()
    schedule = Schedule(budget=0.1, clock=clock)
    steps_measured(schedule, clock, 200, cost=2.0, pace=1.0)
    fast = schedule.every
    for step in range(200, 300):
        clock.time += 10.0
        if schedule.due(step):
            with schedule.measuring():
                clock.time += 2.0
    assert (fast, schedule.every) == (20, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be an integer of at least 1, got 0"),
        ({"every": 2.5}, "got 2.5"),
        ({"every": float("nan")}, "got nan"),
        ({"steps": [0.5]}, "steps must be integers from 0 on"),
        ({"budget": 0}, "budget is a share of the training time above 0, got 0"),
        ({"steps": [-1]}, "steps must be integers from 0 on"),
        ({"steps": [1], "budget": 0.1}, "give steps or a budget, not both"),
    ],
)
def test_senseless_schedules_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Schedule(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": "a"}, "every must be an integer number of steps, got 'a'"),
        ({"steps": 5}, "steps must be a list of step numbers, got 5"),
        ({"steps": "12"}, "steps must be a list of step numbers, got '12'"),
        ({"steps": [None]}, "steps must be a list of step numbers"),
        ({"budget": "x"}, "budget must be a number, got 'x'"),
    ],
)
def test_schedules_of_another_type_are_refused(options, message):
    with pytest.raises(ArgumentTypeError, match=message):
        Schedule(**options)
