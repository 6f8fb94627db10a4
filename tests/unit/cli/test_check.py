import json
import re
from dataclasses import replace

from normscope.cli.check import print_verdicts
from normscope.theorems import Unchecked, Verdict


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
    assert "Rounding aside (1e-08)" in " ".join(out.split())
    assert out.count("not checked: it is too large.") == 1


def test_reasons_are_wrapped_and_commands_are_not(capsys):
    words = "a unit has 256 values in a batch of 256, more than 128"
    command = f"normscope check fully_connected {'--option depth=3 ' * 6}--batch-size 128"
    reasons = [f"{words}: take --batch-size 128", f"{words}: try {command}"]
    found = [(name, Unchecked("theorem_c1", name)) for name in reasons]
    print_verdicts(found, "exact", as_json=False)
    _, begin, out = capsys.readouterr().out.partition("not checked: a")
    lines = f"{begin}{out}".splitlines()
    assert f"  {command}" in lines
    assert max(len(line) for line in lines if not line.startswith("  ")) <= 80
    assert f"not checked: {reasons[0]}." in " ".join(lines)
    assert f"not checked: {words}:" in lines


def test_subjects_stay_plain_in_json(capsys):
    print_verdicts([("1", verdict("fact_c1", "1"))], "exact", as_json=True)
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["subject"] == "1"


def test_summary_has_a_row_for_each_statement_and_shows_what_is_false(capsys):
    bad = Verdict(
        "fact_c1", "bound", "exact", 2.0, 1.0, False, -0.5, layer="4", cases=9, failures=2
    )
    vacuous = Verdict(
        "lemma_4_5",
        "bound",
        "exact",
        2.0,
        1.0,
        False,
        -0.5,
        cases=5,
        unmet=5,
        failures=0,
        premise="it is so",
        premise_met=False,
    )
    found = [
        ("1", verdict("fact_c1", "1")),
        ("1", Unchecked("theorem_c1", "it is too large", layer="1")),
        ("random cases", vacuous),
        ("4", bad),
        ("4", verdict("theorem_c1", "4")),
    ]
    assert print_verdicts(found, "exact", as_json=False, every_row=False) == 1
    out = capsys.readouterr().out
    short, full = out.split("Those that are false")
    rows = {line.split()[0]: line for line in short.splitlines() if "_" in line}
    assert list(rows) == ["fact_c1", "theorem_c1", "lemma_4_5"]
    assert rows["fact_c1"].split()[2:] == ["2", "layers", "18", "-", "2", "-5.0e-01", "false"]
    assert rows["theorem_c1"].endswith("holds (1 unchecked)")
    assert rows["lemma_4_5"].endswith("premise not met")
    (line,) = [line for line in full.splitlines() if "fact_c1" in line]
    assert "layer 4" in line
    assert "5 rows in all, one a statement and layer: --all shows them." in full
    print_verdicts(found, "exact", as_json=True, every_row=False)
    assert len(json.loads(capsys.readouterr().out)["verdicts"]) == 4


def units(count, **changes):
    """What was found on so many units of one layer, and in total."""
    one = Verdict("fact_c1", "identity", "exact", 1.0, 1.0, True, 0.0, layer="1")
    return [("1", replace(one, unit=unit, **changes)) for unit in (*range(count), None)]


def test_units_of_one_layer_are_summed_up(capsys):
    found = [*units(8), ("1", Unchecked("theorem_c1", "it is too large", layer="1"))]
    assert print_verdicts(found, "exact", as_json=False, every_row=False) == 0
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if line.startswith("fact_c1 ")]
    assert re.fullmatch(r"fact_c1 += +layer 1 +9 .* holds", row)
    assert "10 rows in all, one a statement and unit: --all shows them." in out
    assert print_verdicts(found, "exact", as_json=False, every_row=True) == 0
    out = capsys.readouterr().out
    assert out.count("layer 1, unit ") == 8
    assert out.count("layer 1, total") == 1
    assert "--all shows them" not in out


def test_unit_that_is_false_or_not_checked_is_told_in_sum(capsys):
    false = ("1", replace(units(1)[0][1], unit=3, holds=False, slack=-1.0, failures=1))
    found = [*units(2), false, ("1", Unchecked("fact_c1", "a scale of zero", "", "1", 4))]
    assert print_verdicts(found, "exact", as_json=False, every_row=False) == 1
    out = capsys.readouterr().out
    assert "false (1 unit unchecked)" in out
    assert re.search(r"Those that are false\n.*\n-+\nfact_c1 .* layer 1, unit 3 ", out)


def test_rows_that_cannot_be_summed_up_are_all_shown(capsys):
    found = [("1", verdict("fact_c1", "1")), ("1", verdict("fact_c2", "1"))]
    print_verdicts(found, "exact", as_json=False, every_row=False)
    assert "--all shows them" not in capsys.readouterr().out
