import pytest

from normscope.cli.check_output import with_remedy
from normscope.theorems import Unchecked


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (512, "take --batch-size 32"),
        (8192, "take --batch-size 2"),
        (8193, "choose by --layer one that has fewer positions"),  # one sample has no variance
    ],
)
def test_advised_batch_has_at_least_two_samples(values, advice):
    found = Unchecked("theorem_c1", f"a unit has {values} values, above dense_limit=256")
    reason = with_remedy(found, 64, "take --batch-size").reason
    assert reason.endswith(f"more than 256: {advice}")
