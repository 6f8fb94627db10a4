"""Decisions by effect and spread, and the verdicts on statements of several parts."""

from itertools import product

import numpy as np
import pytest

from normscope.errors import InputError
from normscope.results import VERDICTS, Claim, claims_table, combine_verdicts
from normscope.results.claim import bootstrap_interval, decide_below


def test_interval_holds_the_share_of_all_resamples():
    values = np.array([0.3, 1.7, -0.4, 2.2])
    means = np.array([np.mean(each) for each in product(values, repeat=4)])
    low, high = bootstrap_interval(values)
    assert np.mean((means >= low - 1e-12) & (means <= high + 1e-12)) >= 0.95
    assert np.mean(means < low - 1e-12) <= 0.025
    assert np.mean(means > high + 1e-12) <= 0.025


def test_interval_of_many_values_is_near_the_normal_one():
    values = np.random.default_rng(1).normal(size=400)
    low, high = bootstrap_interval(values)
    reach = 1.96 * values.std(ddof=1) / 20
    assert (low, high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=0.01)
    assert bootstrap_interval(values) == (low, high)  # no other random number


@pytest.mark.parametrize(
    ("values", "decided"),
    [
        ([-1.0, -1.1, -0.9], True),
        ([1.0, 1.1, 0.9], False),
        ([-1.0, -1.1], None),  # few seeds
        ([-1.0, -1.1, 0.01], None),  # one disagrees
        ([-0.01, -0.01, -2.0], None),  # all below, but within their spread
        ([-1.0, -1.1, np.nan], None),
        ([np.inf] * 3, False),
        ([-np.inf] * 3, True),
        ([-1.0, -1.1, np.inf], None),
    ],
)
def test_effect_must_exceed_its_spread(values, decided):
    assert decide_below(np.array(values)) is decided
    assert decide_below(np.array(values) + 0.5, threshold=0.5) is decided


def test_partly_is_for_parts_that_differ():
    assert [combine_verdicts([each] * 2) for each in VERDICTS] == list(VERDICTS)
    assert combine_verdicts(["reproduced", "not reproduced", "undecided"]) == "partly"
    assert combine_verdicts(["not reproduced", "undecided"]) == "undecided"


def test_claims_beyond_the_paper_are_listed_apart():
    own = Claim("a", "here", "1", None, rule="by seeds", resolve="3 seeds", statement="A.")
    other = Claim("b", "there", "2", None, origin="beyond the paper", partly=True)
    table = claims_table([other, own])
    first, second = table.split("\n\nBeyond the paper:\n\n")
    assert "| A. | a | here | by seeds | 1 | undecided: 3 seeds |" in first
    assert "| b | there | 2 | partly |" in second
    assert other.to_dict()["verdict"] == "partly"


def test_claims_are_checked():
    with pytest.raises(InputError, match="origin of a claim is one of"):
        Claim("a", "b", "c", True, origin="ours")
    with pytest.raises(InputError, match="holds=None"):
        Claim("a", "b", "c", True, partly=True)
