import io
import json
import math
import re
import time

import pytest
from rich.console import Console

from normscope.cli import output
from normscope.cli.output import (
    UNEVEN,
    Bar,
    Lines,
    print_json,
    progress,
)
from normscope.cli.time_left import TimeLeft


def test_json_is_strict(capsys):
    print_json({"a": math.nan, "b": [math.inf, 1.5], "c": (None, "x")})
    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 1.5],
        "c": [None, "x"],
    }


def test_bar_ends_full_unless_the_work_broke_off():
    console = Console(file=io.StringIO(), force_terminal=True)
    with Bar("check", 5, console) as bar:
        bar.tell("first")
    assert bar._bar.tasks[0].completed == 5
    bar = Bar("check", 5, console)
    bar.tell("first")
    bar.tell("second")
    bar.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert bar._bar.tasks[0].completed == 1


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def told(parts, total=None):
    """The lines of parts that take some seconds each, looked at every half second."""
    clock = Clock()
    lines = Lines("compare", total, clock)
    for text, seconds in parts:
        lines.tell(text)
        for _ in range(round(2 * seconds)):
            clock.now += 0.5
            lines.look()


def test_log_has_one_line_for_each_part_and_its_seconds(capsys):
    norms = ["none (1 of 3)", "batch (2 of 3)", "layer (3 of 3)"]
    told([(f"{norm}, {what}", 3) for norm in norms for what in ("ramp", "run")])
    assert capsys.readouterr().err.splitlines() == [
        "compare: none (1 of 3), ramp (2 s)",
        "compare: batch (2 of 3), ramp (6 s)",
        "compare: layer (3 of 3), ramp (12 s)",
    ]


def test_log_of_what_is_soon_over_is_empty(capsys):
    told([("first", 1), ("second", 0.5)])
    assert capsys.readouterr().err == ""


def test_log_of_a_long_part_has_signs_of_life_that_grow_rare(capsys):
    told([("cells", 3600)])
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["compare: cells (2 s)", "compare: cells (12 s)", "compare: cells (22 s)"]
    assert 30 < len(lines) < 60


def test_log_of_a_count_is_no_line_for_each(capsys):
    told([(f"{done} of 60 products", 1) for done in range(60)])
    assert len(capsys.readouterr().err.splitlines()) == 6


def test_log_counts_the_parts_unless_they_do_so_themselves(capsys):
    told([("fact, random cases", 2), ("batch 1 of 3, curvature", 2), ("one too many", 2)], total=2)
    assert capsys.readouterr().err.splitlines() == [
        "compare: fact, random cases, part 1 of 2 (2 s)",
        "compare: batch 1 of 3, curvature (3 s)",
        "compare: one too many (4 s)",
    ]


def test_log_goes_on_while_nothing_is_told(capsys, monkeypatch):
    monkeypatch.setattr(output, "_SILENT", 0.1)
    with progress("reading", 40):
        time.sleep(0.8)
    assert re.fullmatch(r"reading \(\d s\)\n", capsys.readouterr().err)


def test_log_whose_reader_has_gone_does_not_end_the_work(monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

        flush = write

    monkeypatch.setattr("sys.stderr", Closed())
    told([("first", 4)])


def test_log_of_many_parts_grows_rare_too(capsys):
    """A line for every part of a second would be thousands in an hour."""
    told([("one, on", 2), ("other, on", 2)] * 450)
    assert 60 < len(capsys.readouterr().err.splitlines()) < 300


def test_closed_stderr_leaves_stdout_to_the_answer(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    told([("first", 4)])
    assert capsys.readouterr().out == ""


def test_log_of_a_long_count_tells_what_is_left(capsys):
    told([(f"{done} of 60 cells", 1) for done in range(60)])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "compare: 1 of 60 cells (2 s)"
    assert lines[2] == "compare: 21 of 60 cells (22 s, about 38 s left)"


def test_what_an_earlier_run_did_says_nothing_of_the_pace(capsys):
    told([(f"{done} of 60 cells", 2) for done in range(40, 60)])
    *_, last = capsys.readouterr().err.splitlines()
    assert last == "compare: 55 of 60 cells (32 s, about 8 s left)"


def test_time_left_falls_while_one_part_is_on(capsys):
    told([("0 of 10 cells", 20), ("5 of 10 cells", 15)])
    *_, last = capsys.readouterr().err.splitlines()
    assert last == "compare: 5 of 10 cells (32 s, about 8 s left)"


def seconds_left(counts, then=()):
    """The estimate after counts at some seconds, and at later moments."""
    clock = Clock()
    begin = clock.now
    left = TimeLeft(clock)
    for second, done, total in counts:
        clock.now = begin + second
        left.count(done, total)
    found = [left.seconds]
    for second in then:
        clock.now = begin + second
        found.append(left.seconds)
    return found


def test_time_left_grows_again_while_a_part_is_late():
    cells = [(10 * done, done, 10) for done in range(9)]  # ten seconds each
    found = seconds_left(cells, then=(85, 90, 100, 150, 300))
    assert found[:3] == [20, 15, 10]  # two cells, of which the first falls due
    assert found[3] == pytest.approx(10 + 100 / 9)  # ten seconds late, and another at this pace
    assert found[3] < found[4] < found[5]
    last = seconds_left([(10 * done, done, 10) for done in range(10)], then=(95, 100, 110, 160))
    assert last == [10, 5, 1, 10, 60]  # not "about 1 s left" for a minute


def test_time_left_of_what_is_done_is_none():
    assert seconds_left([(0, 0, 10), (20, 10, 10)], then=(30, 60)) == [0, 0, 0]


def test_no_time_is_told_in_the_first_ten_seconds():
    assert seconds_left([(0, 0, 10), (9, 5, 10)], then=(9.9, 10)) == [None, None, 8]


def test_time_left_is_told_from_a_tenth_of_what_is_to_do_here():
    """What an earlier run did is not to do: one of the last ten is a tenth."""
    assert seconds_left([(0, 90, 100), (20, 91, 100)]) == [180]
    assert seconds_left([(0, 0, 100), (90, 9, 100), (100, 10, 100)], then=()) == [900]
    assert seconds_left([(0, 0, 100), (90, 9, 100)]) == [None]


def test_total_that_is_a_guess_is_called_one_and_gives_a_rough_time(capsys):
    clock = Clock()
    lines = Lines("learning rate", 18, clock, "part {} of about {}")
    for run in range(3):
        lines.tell(f"run {run + 1} at 0.5")
        clock.now += 20
        lines.look()
    assert capsys.readouterr().err.splitlines()[-1] == (
        "learning rate: run 3 at 0.5, part 3 of about 18 (60 s, about 5 min left)"
    )


def test_uneven_parts_tell_the_time_by_their_steps_alone(monkeypatch, capsys):
    """Seconds of parts before the runs, and their number, say nothing of the runs."""
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    bar, lines = Bar("lr", 20, console, UNEVEN), Lines("lr", 20, clock, UNEVEN)
    left = bar._bar.tasks[0].fields["left"]
    for part in range(7):
        bar.tell(f"curvature {part}")
        lines.tell(f"curvature {part}")
        clock.now += 100
    assert str(left) == ""
    for run, done in enumerate((0, 100, 150)):
        told = f"run {run + 1} at 0.5 ({done} of at most 600 steps)"
        bar.tell(told)
        lines.tell(told)
        clock.now += 10
    assert str(left) == "up to 50 s left"  # 450 steps at 7.5 a second, of which 10 s have passed
    assert bar._bar.tasks[0].fields["count"] == "part 10 of some 20"
    assert str(lines._left) == str(left)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "lr: run 1 at 0.5 (0 of at most 600 steps), part 8 of some 20 (700 s)"
    )


def test_bar_counts_and_tells_the_time_left(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    bar = Bar("sweep", None, console)
    for done in (40, 45, 50):
        bar.tell(f"{done} of 60 cells")
        clock.now += 10
    (task,) = bar._bar.tasks
    assert (task.fields["count"], str(task.fields["left"])) == ("50/60", "about 10 s left")
    bar = Bar("learning rate", 18, console, "part {} of about {}")
    for run in range(3):
        bar.tell(f"run {run + 1} at 0.5")
        clock.now += 10
    (task,) = bar._bar.tasks
    told = task.fields["count"], str(task.fields["left"])
    assert told == ("part 3 of about 18", "about 2.5 min left")
    bar = Bar("curvature", 100, console, "product {} of at most {}")
    for _ in range(30):
        bar.tell("a product")
        clock.now += 10
    assert str(bar._bar.tasks[0].fields["left"]) == ""


def test_bar_counts_no_further_than_its_total():
    bar = Bar("check", 2, Console(file=io.StringIO(), force_terminal=True, width=120))
    for text in ("first", "second", "one too many"):
        bar.tell(text)
    assert bar._bar.tasks[0].fields["count"] == "part 2 of 2"


def test_long_text_in_a_narrow_terminal_leaves_room_for_the_time(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    bar = Bar("demo", None, console)
    for done in (20, 60):
        kept = f"{done} % done (8 parts kept: 20 %)"
        bar.tell(f"{kept}; landscape: layer; seed 0; curvature of batch 1 of 3")
        clock.now += 12
    with console.capture() as captured:
        console.print(bar._bar.get_renderable())
    assert "demo: 60 % done (8 parts kept: 20 %); land" in captured.get()
    assert "about 1 s left" in captured.get()


def test_guessed_total_grows_with_the_parts(capsys):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    bar, clock = Bar("compare", 2, console, "part {} of about {}"), Clock()
    lines = Lines("compare", 2, clock, "part {} of about {}")
    for run in range(3):
        bar.tell(f"run {run}")
        clock.now += 20
        lines.tell(f"run {run}")
    (task,) = bar._bar.tasks
    assert task.fields["count"] == "part 3 of about 4"
    assert task.completed < task.total
    assert "run 2, part 3 of about 4" in capsys.readouterr().err


def test_spent_time_is_whole_in_a_narrow_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    bar = Bar("compare", 63, console, "part {} of about {}")
    bar.tell("batch (2 of 3), run 14 at 0.0123, of a text that is much too long for it")
    with console.capture() as captured:
        console.print(bar._bar.get_renderable())
    assert re.search(r"-:--:--|\d:\d\d:\d\d", captured.get())
    assert "part 1 of about 63" in captured.get()
