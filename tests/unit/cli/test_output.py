import json
import math

import pytest

from normscope.cli.output import print_json, print_table


def test_json_is_strict(capsys):
    print_json({"a": math.nan, "b": [math.inf, 1.5], "c": (None, "x")})
    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 1.5],
        "c": [None, "x"],
    }


def test_table_is_plain_text_when_piped(capsys):
    print_table("Title", [{"name": "one", "value": 0.123456}, {"name": "two", "value": None}])
    text = capsys.readouterr().out
    assert "\x1b" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["one", "0.1235"] in rows
    assert ["two", "-"] in rows
