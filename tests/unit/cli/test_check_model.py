"""The statements on a part of the batch."""

import pytest
import torch

from normscope.cli.check_model import (
    add_remedy,
    check_in_parts,
)
from normscope.theorems import TooLarge, Unchecked, Verdict, Verdicts

BATCH = torch.zeros(64, 3), torch.zeros(64, 2)


def check_of(positions, limit=128):
    """A check of units with so many positions a sample, whose verdict's slack is the batch's size.

    Its sentence says nothing of the sizes.
    """

    def check(batch, most=8, limit=limit):
        samples = len(batch[0])
        made = [Verdict("fact_c1", "identity", "exact", 0.0, 0.0, True, float(samples))]
        other = Unchecked("fact_c2", "its scale is zero")
        if samples * positions > limit:
            sizes = TooLarge(samples * positions, limit)
            return Verdicts(made, [other, Unchecked("theorem_c1", "no", too_large=sizes)])
        made.append(Verdict("theorem_c1", "identity", "exact", 0.0, 0.0, True, float(samples)))
        return Verdicts(made, [other])

    return check


@pytest.mark.parametrize(("positions", "part"), [(4, 4), (16, 2), (64, 2)])
def test_what_is_too_large_is_put_to_the_first_samples(positions, part):
    found, taken = check_in_parts(check_of(positions), BATCH)
    assert taken == part
    assert {each.name: each.slack for each in found} == {"fact_c1": 64.0, "theorem_c1": part}
    assert [each.name for each in found.unchecked] == ["fact_c2"]


@pytest.mark.parametrize(("positions", "unchecked"), [(2, []), (65, ["theorem_c1"])])
def test_there_is_no_part_of_what_fits_nor_where_two_samples_do_not(positions, unchecked):
    found, taken = check_in_parts(check_of(positions), BATCH)
    assert taken is None
    assert [each.name for each in found.unchecked] == ["fact_c2", *unchecked]


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (512, "take --batch-size 32"),
        (8192, "take --batch-size 2"),
        (8193, "choose by --layer one that has fewer positions"),  # one sample has no variance
    ],
)
def test_advised_batch_has_at_least_two_samples(values, advice):
    found = Unchecked("theorem_c1", "in any words", too_large=TooLarge(values, 256))
    reason = add_remedy(found, 64, "take --batch-size").reason
    assert reason == f"a unit has {values} values in a batch of 64, more than 256: {advice}"


def test_only_what_is_too_large_is_given_a_remedy():
    found = Unchecked("theorem_c1", "a unit has 512 values, above dense_limit=256")
    assert add_remedy(found, 64, "take --batch-size") is found
