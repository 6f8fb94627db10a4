import json
import math
import re

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.cli.render import print_json, print_note, print_table, print_text


def test_table_is_plain_text_when_piped(capsys):
    print_table("Title", [{"name": "one", "value": 0.123456}, {"name": "two", "value": None}])
    text = capsys.readouterr().out
    assert "\x1b" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["one", "0.1235"] in rows
    assert ["two", "-"] in rows
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_table_fits_80_columns_when_piped_and_else_its_terminal(capsys, monkeypatch):
    rows = [{"name": "fact [bold]", "what": "words " * 30, "slack": "1.0e-15"}]
    print_table("Title", rows, numbers=["slack"])
    piped = capsys.readouterr().out
    assert 60 < max(map(len, piped.splitlines())) <= 80
    assert piped.count("words") == 30
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "dumb")
    print_table("Title", rows, numbers=["slack"])
    out = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 70
    assert out.count("words") == 30
    assert "fact [bold]" in out


@pytest.mark.parametrize(
    ("columns", "table", "note"),
    [("60", 60, 60), ("200", 200, 200), ("", 80, 80), ("0", 80, 80), ("-5", 80, 80)],
)
def test_columns_says_the_width_of_what_is_piped(columns, table, note, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    print_table("Title", [{"name": "net", "what": "words " * 60}])
    assert table - 6 < max(map(len, capsys.readouterr().out.splitlines())) <= table
    print_note("words " * 60)
    assert note - 6 < max(map(len, capsys.readouterr().out.splitlines())) <= note


def test_columns_that_are_no_number_are_not_read(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "wide")
    print_note("words " * 60)
    assert 74 < max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_title_and_heads_are_bold_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    print_note("Title\nname  limit\n-----------\nnone    0.5\n\nA sentence.")
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("\x1b[1m") for line in lines] == [True, True, *[False] * 4]


def test_note_is_wrapped_to_80_columns_when_piped(capsys):
    note = "A sentence of some words about path/to-a/file.py:build. " * 20
    row = "name  " + "x " * 60
    print_note(f"{note.strip()}\n\n{row}\nshort")
    *lines, empty, same, short = capsys.readouterr().out.splitlines()
    assert (empty, same, short) == ("", row, "short")
    assert 60 < max(map(len, lines)) <= 80
    assert " ".join(lines) == note.strip()
    assert not any("path/to-" in line and "file.py:build" not in line for line in lines)


def test_note_is_wrapped_to_the_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    print_note("word " * 20)
    assert [len(line) for line in capsys.readouterr().out.splitlines()] == [29, 29, 29, 9]


@pytest.mark.parametrize("columns", [60, 100])
def test_results_fit_the_terminal_and_lose_no_number(columns, capsys):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    problem = net, "squared_error", (torch.randn(16, 4), torch.randn(16, 3))
    advice = ns.max_learning_rate(*problem, verify=False)
    compared = ns.compare(*problem, norms=["none", "batch"], verify=False, steps=3)
    predicted = ns.meanfield.predict(net, (4,))
    for result in (advice, compared, predicted):
        print_text(result.text(columns))
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= columns
        numbers = re.findall(r"\d\S*", str(result))
        assert set(numbers) <= set(re.findall(r"\d\S*", out))


def test_json_is_strict(capsys):
    print_json({"a": math.nan, "b": [math.inf, 1.5], "c": (None, "x")})
    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 1.5],
        "c": [None, "x"],
    }
