import json

import pytest

from normscope.cli.check_output import print_verdicts, with_remedy
from normscope.theorems import Unchecked, Verdict


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


def verdict(name, layer, slack=-1e-16):
    return Verdict(name, "identity", "exact", 1.0, 1.0, True, slack, layer=layer, cases=9)


def test_rows_of_a_layer_stand_together_and_columns_are_explained(capsys):
    found = [
        ("1", verdict("fact_c1", "1")),
        ("1", Unchecked("theorem_c1", "it is too large", layer="1")),
        ("4", verdict("fact_c1", "4")),
        ("4", Unchecked("theorem_c1", "it is too large", layer="4")),
    ]
    assert print_verdicts(found, "exact", as_json=False) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if " layer " in line and "_c1" in line]
    assert [(row.split()[0], row.partition("layer ")[2][0]) for row in rows] == [
        ("fact_c1", "1"),
        ("theorem_c1", "1"),
        ("fact_c1", "4"),
        ("theorem_c1", "4"),
    ]
    for column in ("kind", "on", "cases", "slack"):
        assert f"\n{column}: " in out
    assert "up to 1e-08" in out
    assert out.count("not checked: it is too large.") == 1


def test_subjects_stay_plain_in_json(capsys):
    print_verdicts([("1", verdict("fact_c1", "1"))], "exact", as_json=True)
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["subject"] == "1"
