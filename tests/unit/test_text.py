from dataclasses import dataclass

import numpy as np
import pytest

from normscope.text import Rendered, Table, text_table, wrap

ROWS = [
    {"norm": "none", "limit": 0.123456, "steps": 20, "kept": True, "slack": "1.0e-15"},
    {"norm": "batch", "limit": None, "steps": 1000, "kept": False, "slack": "-"},
]


def test_texts_stand_left_and_numbers_right():
    assert text_table(ROWS, "Nets", numbers=["slack"]).splitlines() == [
        "Nets",
        "norm    limit  steps  kept    slack",
        "-----------------------------------",
        "none   0.1235     20  yes   1.0e-15",
        "batch       -   1000  no          -",
    ]


def test_values_that_a_row_lacks_are_dashes():
    assert text_table([{"a": "x"}, {"b": 1.5}]).splitlines() == [
        "a    b",
        "------",
        "x    -",
        "-  1.5",
    ]


def test_nothing_to_show_is_the_title():
    assert text_table([], "Nets") == "Nets"
    assert text_table([]) == ""


def test_long_texts_are_wrapped_within_their_column():
    remark = "some words about the value that need more than one line " * 3
    row = {"quantity": "limit", "value": 0.5, "remark": remark.strip()}
    _, rule, *lines = text_table([row]).splitlines()
    assert len(lines) == 3
    assert max(map(len, [rule, *lines])) <= 80
    place = lines[0].index("some")
    assert all(line[:place].isspace() for line in lines[1:])
    assert " ".join(line[place:] for line in lines) == remark.strip()


def test_heads_are_wrapped_before_columns_are_parted():
    row = {"norm": "none"} | {f"limit by theory {n}": 1.5 for n in range(5)}
    lines = text_table([row], width=60).splitlines()
    assert lines[-1].split() == ["none", *["1.5"] * 5]
    assert lines[-3].split()[0] == "norm"  # heads stand on the rule
    assert max(map(len, lines)) <= 60


def test_columns_that_do_not_fit_follow_below_beside_the_first():
    row = {"norm": "none"} | {f"column_{n}": float(n) for n in range(12)}
    text = text_table([row], "Nets", width=60)
    assert max(map(len, text.splitlines())) <= 60
    blocks = text.removeprefix("Nets\n").split("\n\n")
    assert len(blocks) > 1
    assert all(block.startswith("norm") for block in blocks)
    shown = [cell for block in blocks for cell in block.splitlines()[-1].split()[1:]]
    assert shown == [str(n) for n in range(12)]


@pytest.mark.parametrize("width", [10, 80, None])
def test_a_word_is_never_broken(width):
    path = "/data/" + "x" * 100
    assert path in text_table([{"name": "mnist", "where": path, "n": 3}], width=width)


def test_table_of_any_width_is_one_line_a_row_without_a_limit():
    row = {f"column {n}": "some words" for n in range(40)}
    assert len(text_table([row], width=None).splitlines()) == 3


def test_texts_between_numbers_are_wrapped():
    reason = "not known because nobody has measured it " * 4
    rows = [{"name": "a", "value": 1.5}, {"name": "b", "value": reason.strip()}]
    lines = text_table(rows, width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[2].split() == ["a", "1.5"]
    assert " ".join(" ".join(lines[3:]).split()) == f"b {reason.strip()}"


def test_numbers_that_are_texts_are_not_wrapped():
    rows = [{"name": "some words " * 6, "value": "1.5 to 2.5 in 3 runs"}]
    assert "1.5 to 2.5 in 3 runs" in text_table(rows, numbers=["value"], width=30)


def test_what_is_not_a_number_is_a_dash_in_text_and_in_a_notebook():
    rows = [{"name": "a", "limit": float("nan")}, {"name": "b", "limit": np.float32("nan")}]
    assert text_table(rows).splitlines()[2:] == ["a         -", "b         -"]
    assert Table(rows).html().count(">-</td>") == 2


def test_wide_and_combining_signs_count_as_a_terminal_shows_them():
    rows = [
        {"name": "\u6a21\u578b", "limit": 1.5},  # two signs, four columns
        {"name": "e\u0301e\u0301", "limit": 2.5},  # four signs, two columns
    ]
    assert text_table(rows).splitlines() == [
        "name  limit",
        "-----------",
        "\u6a21\u578b    1.5",
        "e\u0301e\u0301      2.5",
    ]
    lines = text_table([{"n": 1, "what": "\u6a21\u578b " * 20}], width=30).splitlines()
    assert max(len(line) + line.count("\u6a21") + line.count("\u578b") for line in lines) <= 30
    assert "\0" not in "".join(lines)


def test_sentences_are_wrapped_and_rows_stay():
    row, words = "name  " + "x " * 30, "word " * 10
    text = f"{row}\n\n{words.strip()}\nshort"
    *rows, short = wrap(text, 24).splitlines()
    assert rows[:2] == [row, ""]
    assert max(map(len, rows[2:])) == 24
    assert " ".join(rows[2:]) == words.strip()
    assert short == "short"
    assert wrap(wrap(text, 24), 24) == wrap(text, 24)


def test_word_wider_than_the_lines_is_kept_whole():
    path = "path/to-a/file.py:build"
    assert wrap(f"see {path}", 10).splitlines() == ["see", path]


@dataclass(frozen=True, repr=False)
class Result(Rendered):
    limit: float
    losses: np.ndarray
    layers: tuple[str, ...]
    inner: "Result | None" = None


RESULT = Result(0.5, np.array([1.0, 2.0]), ("a<b",), Result(1.5, np.zeros(1), ()))


def test_result_has_plain_values():
    assert RESULT.to_dict() == {
        "limit": 0.5,
        "losses": [1.0, 2.0],
        "layers": ["a<b"],
        "inner": {"limit": 1.5, "losses": [0.0], "layers": [], "inner": None},
    }


def test_result_prints_its_scalars_unless_it_has_a_table():
    assert repr(RESULT) == str(RESULT) == "limit  0.5"

    class Titled(Result):
        def _table(self):
            return Table([{"layer": name} for name in self.layers], "Net", ["A note.", "Another."])

    titled = Titled(0.5, np.zeros(1), ("a<b",))
    assert str(titled).splitlines() == ["Net", "layer", "-----", "a<b", "", "A note.", "Another."]
    html = titled._repr_html_()
    assert "<caption" in html
    assert ">a&lt;b</td>" in html
    assert html.endswith("<p>A note.</p><p>Another.</p>")


def test_result_is_one_row_of_a_frame():
    frame = RESULT.to_dataframe()
    assert frame["limit"].tolist() == [0.5]
    assert frame["losses"].tolist() == [[1.0, 2.0]]


def test_pairs_are_aligned_and_escaped():
    table = Table({"a": None, "longer": 0.123456, "name": "<b>"})
    assert table.text().splitlines() == ["a       -", "longer  0.1235", "name    <b>"]
    assert "&lt;b&gt;" in table.html()
