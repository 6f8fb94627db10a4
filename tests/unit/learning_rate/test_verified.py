import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.learning_rate.stability import ShortRun
from normscope.learning_rate.verification import Verification


def runs(*outcomes):
    """A verification of a ramp and runs (rate, whether it failed)."""
    trials = [ShortRun(rate, 0, failed, 50 if failed else 100, 1.0) for rate, failed in outcomes]
    failed = [rate for rate, broke in outcomes if broke]
    return Verification(
        0.1, max(failed, default=math.inf), (ShortRun(1e-9, 0, True, 9, 3), *trials), 1
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
    trials = [
        ShortRun(rate, order, shown == "unstable", 60, 1.0, died=shown == "died")
        for rate, order, shown in outcomes
    ]
    ramp = ShortRun(1e-9, 0, False, 9, 1.0, died=True)
    return Verification(0.8, 0.9, (ramp, *trials), 1)


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
