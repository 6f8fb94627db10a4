"""Verdicts: what counts as a failure, and how they print."""

import torch

from normscope.theorems import Verdict, Verdicts, check, check_cases
from normscope.theorems.verdict import worst


def made(slack, kind="bound", met=None, **more):
    holds = slack >= 0 if kind == "bound" else abs(slack) < 1e-8
    premise = "" if met is None else "something"
    return Verdict(
        "theorem_4_1",
        kind,
        "exact",
        1.0,
        1.0 + slack,
        holds,
        slack,
        premise=premise,
        premise_met=met,
        **more,
    )


def test_unmet_premise_is_no_refutation():
    outside = made(-1.0, met=False)
    assert not outside.holds
    assert not outside.refuted
    assert outside.unmet == 1
    assert made(-1.0, met=True).refuted


def test_worst_counts_and_chooses():
    every = [made(0.5), made(-0.2), made(-0.1), made(-5.0, met=False)]
    found = worst(every)
    assert (found.cases, found.failures, found.unmet) == (4, 2, 1)
    assert found.slack == -0.2
    assert not found.holds
    identities = [made(1e-12, "identity"), made(-1e-3, "identity"), made(1e-4, "identity")]
    assert worst(identities).slack == -1e-3


def test_not_a_number_is_the_worst():
    assert worst([made(-3.0), made(float("nan"))]).slack != worst([made(-3.0)]).slack


def test_table_has_a_line_for_each():
    verdicts = check_cases("theorem_4_1", form="printed", cases=3)
    lines = str(verdicts).splitlines()
    assert lines[0] == "Statements, printed form"
    assert len(lines) == 6
    assert all("FAILS" in line for line in lines[3:])
    assert max(map(len, lines)) <= 80
    assert len(verdicts.refuted) == 3
    assert repr(verdicts) == str(verdicts)
    assert verdicts._repr_html_().count("<tr>") == 4


def test_repr_says_the_relation():
    text = repr(check("theorem_4_1", y=[0.0, 1.0, 5.0], g=[1.0, 0.0, 2.0]))
    assert text.startswith("theorem_4_1, exact: ")
    assert " = " in text
    assert "holds" in text
    many = repr(check("theorem_4_1", form="printed", cases=5))
    assert "<=" in many
    assert "5 of 5 cases fail" in many


def test_values_are_plain():
    verdicts = check_cases("fact_c1", cases=2)
    plain = verdicts.to_dict()
    assert plain["refuted"] == 0
    assert isinstance(plain["verdicts"][0]["lhs"], float)
    assert isinstance(verdicts[0].lhs, torch.Tensor)
    frame = verdicts.to_dataframe()
    assert list(frame["holds"]) == [True, True]
    assert isinstance(verdicts, Verdicts)
