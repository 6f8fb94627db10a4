import pytest
import torch

from normscope.cli.check_part import checked_in_parts
from normscope.theorems import TooLarge, Unchecked, Verdict, Verdicts

BATCH = torch.zeros(64, 3), torch.zeros(64, 2)


def check_of(positions, limit=128):
    """A check of units with so many positions a sample, whose verdict's slack is the batch's size.

    Its sentence says nothing of the sizes.
    """

    def check(batch):
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
    found, taken = checked_in_parts(check_of(positions), BATCH)
    assert taken == part
    assert {each.name: each.slack for each in found} == {"fact_c1": 64.0, "theorem_c1": part}
    assert [each.name for each in found.unchecked] == ["fact_c2"]


@pytest.mark.parametrize(("positions", "unchecked"), [(2, []), (65, ["theorem_c1"])])
def test_there_is_no_part_of_what_fits_nor_where_two_samples_do_not(positions, unchecked):
    found, taken = checked_in_parts(check_of(positions), BATCH)
    assert taken is None
    assert [each.name for each in found.unchecked] == ["fact_c2", *unchecked]
