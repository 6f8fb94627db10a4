import io
import re
import time

import pytest
from rich.console import Console

from normscope import progress_bar
from normscope.progress import Progress, callback_of, ignore_progress
from normscope.progress_bar import Bar, Lines, TimeLeft, show_progress, shows_progress


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def terminal(width=120):
    return Console(file=io.StringIO(), force_terminal=True, width=width)


def cells(done, total=60):
    return Progress(done=done, total=total, unit="cells")


def log(events):
    """Print the lines of events that take some seconds each, looked at every half second."""
    clock = Clock()
    lines = Lines("compare", clock)
    for event, seconds in events:
        lines.show(event)
        for _ in range(round(2 * seconds)):
            clock.now += 0.5
            lines.print_if_due()


def test_bar_ends_full_unless_the_work_failed():
    with Bar("check", terminal()) as bar:
        bar.show(Progress("first", done=0, total=5))
    assert bar._bar.tasks[0].completed == 5
    bar = Bar("check", terminal())
    bar.show(Progress("second", done=1, total=5))
    bar.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert bar._bar.tasks[0].completed == 1


def test_log_has_one_line_for_each_stage_and_its_seconds(capsys):
    norms = ["none", "batch", "layer"]
    log([(Progress(norm, what), 3) for norm in norms for what in ("ramp", "run")])
    assert capsys.readouterr().err.splitlines() == [
        "compare: none, ramp (2 s)",
        "compare: batch, ramp (6 s)",
        "compare: layer, ramp (12 s)",
    ]


def test_log_of_short_work_is_empty(capsys):
    log([(Progress("first"), 1), (Progress("second"), 0.5)])
    assert capsys.readouterr().err == ""


def test_log_of_a_long_stage_has_lines_at_growing_intervals(capsys):
    log([(Progress("cells"), 3600)])
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["compare: cells (2 s)", "compare: cells (12 s)", "compare: cells (22 s)"]
    assert 30 < len(lines) < 60


def test_log_of_a_count_does_not_print_each_number(capsys):
    log([(cells(done), 1) for done in range(60)])
    assert len(capsys.readouterr().err.splitlines()) == 6


def test_log_continues_while_no_event_comes(capsys, monkeypatch):
    monkeypatch.setattr(progress_bar, "_SILENT", 0.1)
    with show_progress("reading"):
        time.sleep(0.8)
    assert re.fullmatch(r"reading: working \(\d s\)\n", capsys.readouterr().err)


def test_closed_pipe_does_not_end_the_work(monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError

        flush = write

    monkeypatch.setattr("sys.stderr", Closed())
    log([(Progress("first"), 4)])


def test_log_of_many_stages_grows_rare_too(capsys):
    """A line for every stage of a second would be thousands in an hour."""
    log([(Progress("one"), 2), (Progress("other"), 2)] * 450)
    assert 60 < len(capsys.readouterr().err.splitlines()) < 300


def test_closed_stderr_leaves_stdout_to_the_answer(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    log([(Progress("first"), 4)])
    assert capsys.readouterr().out == ""


def test_log_of_a_long_count_has_the_time_left(capsys):
    log([(cells(done), 1) for done in range(60)])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "compare: 1 of 60 cells (2 s)"
    assert lines[2] == "compare: 21 of 60 cells (22 s, about 38 s left)"


@pytest.mark.parametrize("kept", [0, 40])
def test_work_of_earlier_runs_does_not_count_for_the_pace(kept, capsys):
    """Whether it is marked as kept, or only counted by the first event."""
    log([(Progress("", "", done, 60, "cells", kept=kept), 2) for done in range(40, 60)])
    *_, last = capsys.readouterr().err.splitlines()
    assert last == "compare: 55 of 60 cells (32 s, about 8 s left)"


def test_work_found_on_the_way_does_not_count_for_the_pace(capsys):
    """Ten of every twenty are found in a store at once."""
    log([(Progress("", "", 20 * i, 100, "cells", kept=10 * i), 10) for i in range(5)])
    *_, last = capsys.readouterr().err.splitlines()
    assert last == "compare: 80 of 100 cells (42 s, about 18 s left)"


def test_time_left_falls_while_one_unit_runs(capsys):
    log([(cells(0, 10), 20), (cells(5, 10), 15)])
    *_, last = capsys.readouterr().err.splitlines()
    assert last == "compare: 5 of 10 cells (32 s, about 8 s left)"


def seconds_left(counts, then=()):
    """The estimate after counts at some seconds, and at later times."""
    clock = Clock()
    begin = clock.now
    left = TimeLeft(clock)
    for second, done, total in counts:
        clock.now = begin + second
        left.count(Progress(done=done, total=total))
    found = [left.seconds]
    for second in then:
        clock.now = begin + second
        found.append(left.seconds)
    return found


def test_time_left_grows_again_while_a_unit_is_late():
    counts = [(10 * done, done, 10) for done in range(9)]  # ten seconds each
    found = seconds_left(counts, then=(85, 90, 100, 150, 300))
    assert found[:3] == [20, 15, 10]  # two units, of which the first falls due
    assert found[3] == pytest.approx(10 + 100 / 9)  # ten seconds late, and another at this pace
    assert found[3] < found[4] < found[5]
    last = seconds_left([(10 * done, done, 10) for done in range(10)], then=(95, 100, 110, 160))
    assert last == [10, 5, 1, 10, 60]  # not "about 1 s left" for a minute


def test_no_time_is_left_once_all_is_done():
    assert seconds_left([(0, 0, 10), (20, 10, 10)], then=(30, 60)) == [0, 0, 0]


def test_time_left_is_not_shown_in_the_first_ten_seconds():
    assert seconds_left([(0, 0, 10), (9, 5, 10)], then=(9.9, 10)) == [None, None, 8]


def test_time_left_is_shown_from_a_tenth_of_the_work_of_this_run():
    """Work of an earlier run is not counted: one of the last ten is a tenth."""
    assert seconds_left([(0, 90, 100), (20, 91, 100)]) == [180]
    assert seconds_left([(0, 0, 100), (90, 9, 100), (100, 10, 100)], then=()) == [900]
    assert seconds_left([(0, 0, 100), (90, 9, 100)]) == [None]


@pytest.mark.parametrize(
    ("total_is", "count", "left"),
    [
        ("exact", "2 of 18 runs", "about 5 min left"),
        ("estimate", "2 of about 18 runs", "about 5 min left"),
        ("bound", "2 of at most 18 runs", "up to 5 min left"),
    ],
)
def test_count_and_time_left_name_what_the_total_is(total_is, count, left, capsys, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    bar, lines = Bar("lr", terminal()), Lines("lr", clock)
    for done in range(3):
        event = Progress("runs", f"run {done + 1}", done, 18, "runs", total_is)
        bar.show(event)
        lines.show(event)
        clock.now += 20
    lines.print_if_due()
    assert capsys.readouterr().err.splitlines()[-1] == f"lr: runs, run 3, {count} (60 s, {left})"
    (task,) = bar._bar.tasks
    assert (task.fields["count"], str(task.fields["left"])) == (count, left)


def test_stages_without_a_count_do_not_count_for_the_pace():
    clock = Clock()
    left = TimeLeft(clock)
    for _ in range(7):
        left.count(Progress("curvature"))
        clock.now += 100
    assert str(left) == ""
    for done in (0, 100, 150):
        left.count(Progress("run", "", done, 600, "steps", "bound"))
        clock.now += 10
    assert str(left) == "up to 50 s left"  # 450 steps at 7.5 a second, of which 10 s have passed


@pytest.mark.parametrize("width", [80, 90])
def test_long_text_in_a_narrow_terminal_leaves_room_for_the_times(width, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock)
    console = terminal(width)
    bar = Bar("demo", console)
    for done in (20, 60):
        detail = "layer, seed 0, curvature of batch 1 of 3, of a text that is much too long"
        bar.show(Progress("landscape", detail, done, 100, "%", kept=20))
        clock.now += 12
    with console.capture() as captured:
        console.print(bar._bar.get_renderable())
    printed = captured.get()
    assert "demo: landscape" in printed
    assert "60 % done (20 % by earlier runs)" in printed
    assert "about 1 s left" in printed
    assert re.search(r"-:--:--|\d:\d\d:\d\d", printed)


@shows_progress("work")
def work(seconds, progress=None):
    """Return the callback's type after some work."""
    send = callback_of(progress)
    for done in range(3):
        time.sleep(seconds / 3)
        send(Progress("part", done=done, total=3))
    return send


def test_call_shows_its_progress_if_asked(capsys, monkeypatch):
    monkeypatch.setattr(progress_bar, "_SILENT", 0.1)
    assert work(0.5, progress=True) is not ignore_progress
    assert "work: part" in capsys.readouterr().err
    work(0.5, True)
    assert "work: part" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "shown"), [(None, True), (False, False)])
def test_interactive_session_shows_progress_by_default(given, shown, capsys, monkeypatch):
    monkeypatch.setattr(progress_bar, "_SILENT", 0.1)
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    work(0.5, progress=given)
    assert ("work: part" in capsys.readouterr().err) == shown


def test_script_shows_nothing_unless_asked(capsys, monkeypatch):
    monkeypatch.delattr("sys.ps1", raising=False)
    assert work(0.0) is ignore_progress
    seen = []
    work(0.0, progress=seen.append)
    assert len(seen) == 3
    assert capsys.readouterr().err == ""


def test_one_call_inside_another_shows_no_second_bar():
    @shows_progress("outer")
    def outer(progress=None):
        return callback_of(progress), work(0.0, progress=True)

    shown, inner = outer(progress=True)
    assert shown is not ignore_progress
    assert inner is ignore_progress


def test_bar_of_a_quick_call_never_appears():
    quick, slow = terminal(), terminal()
    with Bar("work", quick, delay=60) as bar:
        bar.show(Progress("part", done=1, total=2))
    assert quick.file.getvalue() == ""
    with Bar("work", slow, delay=0) as bar:
        bar.show(Progress("part", done=1, total=2))
    assert "work: part" in slow.file.getvalue()
