"""Where commands write: refused before the work if it cannot be, and no answer lost after it."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import xarray as xr

from normscope.cli.main import main
from normscope.cli.outputs import (
    check_figure,
    check_file,
    check_folder,
    draw_then_print,
    resumable,
    write_then_print,
)
from normscope.errors import InputError
from normscope.results import Store


def test_nothing_is_left_where_something_can_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("x.svg", "new/x.svg", "new/deeper/x.svg", tmp_path / "a" / "b"):
        check_file(Path(place), "figure")
        check_folder(Path(place), "files")
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "x.svg").write_text("old")
    check_file(tmp_path / "x.svg", "figure")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_folder_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r" is a folder; name a file in it, such as .*report\."):
        check_file(tmp_path, "report", "report.html")


def test_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    for deeper in ("", "a", "a/b"):
        with pytest.raises(InputError, match=r"^the files cannot go to .*taken is not a folder; "):
            check_folder(tmp_path / "taken" / deeper, "files")


@pytest.mark.parametrize("place", ["x.svg", "new/x.svg"])
def test_reason_of_the_system_is_told(place, tmp_path, monkeypatch):
    def refuse(path, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir" if "/" in place else "open", refuse)
    said = r"is not writable \(Permission denied\); choose another\.$"
    with pytest.raises(InputError, match=said):
        check_file(tmp_path / place, "figure")
    assert list(tmp_path.iterdir()) == []


def test_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not writable \("):
        check_file(tmp_path / f"{'x' * 250}.svg", "figure")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that even root has not")
def test_folder_that_nobody_can_make_is_refused():
    assert os.access("/proc", os.X_OK)
    with pytest.raises(
        InputError, match=r"^the figure cannot go to /proc/nope: /proc is not writable"
    ):
        check_file(Path("/proc/nope/x.svg"), "figure")


def test_answer_is_printed_before_the_failure_to_write(capsys):
    def fail():
        raise OSError(errno.ENOSPC, "No space left on device", "x.svg")

    def answer():
        with write_then_print(fail) as written:
            print(f"the answer, {written}")

    with pytest.raises(OSError, match="No space left"):
        answer()
    assert capsys.readouterr().out == "the answer, None\n"
    with write_then_print(lambda: "x.svg") as written:
        assert written == "x.svg"


NET = ["fully_connected", "--data", "digits"]


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["lr", *NET], "x.svg"),
        (["compare", *NET], "x.svg"),
        (["curvature", *NET], "x.svg"),
        (["theory", "fully_connected"], "x.svg"),
        (["demo"], ""),
        (["run", "wei2018/figure1"], ""),
        (["sweep", "phase_diagram"], "x.sqlite"),
        (["sweep", "phase_diagram", "--boundary"], "x.sqlite"),
        (["report", "normscope-out"], "x.html"),
        (["data", "fetch", "mnist"], ""),
    ],
)
def test_every_command_refuses_before_it_works(arguments, place, tmp_path, monkeypatch, capsys):
    (tmp_path / "taken").write_text("")
    for home in ("normscope.cli.sources.load_data", "normscope.data.download"):
        monkeypatch.setattr(home, lambda *given, **options: pytest.fail("work has begun"))
    out = tmp_path / "taken" / "deeper" / place
    assert main([*arguments, "--out", str(out)]) == 2
    assert "taken is not a folder; choose another.\n" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


FIGURES = {
    "lr": ["lr", *NET, "--batch-size", "16", "--option", "width=8", "--no-verify"],
    "compare": [
        *("compare", *NET, "--batch-size", "16", "--option", "width=8", "--no-verify"),
        *("--norms", "none", "--steps", "2"),
    ],
    "curvature": ["curvature", *NET, "--batch-size", "16", "--option", "width=8"],
    "theory": ["theory", "fully_connected"],
}


@pytest.mark.parametrize("command", FIGURES)
def test_answer_is_not_lost_with_its_figure(command, tmp_path, monkeypatch, capsys):
    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device", "x.svg")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    assert main([*FIGURES[command], "--out", str(tmp_path / "x.svg")]) == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) >= 5  # three lines of an answer, and what it is of
    assert "Figure: " not in out
    assert err.endswith("normscope: x.svg: No space left on device\n")
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Unwritable:
    """The result of an experiment that meets a full disk."""

    label: str | None = None
    claims: tuple[()] = ()

    def write(self, folder):
        raise OSError(errno.ENOSPC, "No space left on device", "x.svg")

    def __str__(self):
        return "the answer"


def test_run_prints_a_result_that_it_cannot_write(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("normscope.experiments.run", lambda *given, **options: Unwritable())
    assert main(["run", "wei2018/figure1", "--out", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == "the answer\n"
    assert err.endswith("normscope: x.svg: No space left on device\n")


def test_demo_prints_a_result_that_it_cannot_write_and_keeps_its_work(
    tmp_path, monkeypatch, capsys
):
    printed = []
    monkeypatch.setattr("normscope.experiments.run", lambda *given, **options: Unwritable())
    monkeypatch.setattr("normscope.experiments.tour.record.with_record", lambda *given: None)
    monkeypatch.setattr("normscope.experiments.tour.record.record_of", lambda *given: None)
    monkeypatch.setattr("normscope.cli.demo._write", lambda result, *given: result.write(given))
    monkeypatch.setattr("normscope.cli.demo._print", lambda *given: printed.append(given))
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert [given[2] for given in printed] == [{}]  # no files
    assert capsys.readouterr().err.endswith("normscope: x.svg: No space left on device\n")
    assert (tmp_path / "demo-unfinished.sqlite").exists()


def test_folder_is_made_with_the_figure_and_not_before(tmp_path):
    out = tmp_path / "new" / "deeper" / "x.svg"
    check_figure(out)
    assert list(tmp_path.iterdir()) == []
    with draw_then_print(out, lambda axes: axes.plot([1, 2])) as drawn:
        assert drawn == out
    assert [each.name for each in out.parent.iterdir()] == ["x.svg"]


def test_relative_folder_is_looked_for_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_figure(Path("x.svg"))
    check_figure(Path("new/deeper/x.svg"))
    assert list(tmp_path.iterdir()) == []


def test_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match=r"taken is not a folder; choose another\."):
        check_figure(tmp_path / "taken" / "deeper" / "x.svg")


def test_interrupt_says_what_was_kept_and_how_to_go_on(tmp_path):
    path = tmp_path / "sweep.sqlite"
    begun = "interrupted; nothing was computed yet."
    kept = f"interrupted; finished work is kept in {path}; run the same command to resume."

    def told():
        with pytest.raises(KeyboardInterrupt) as caught, resumable(path):
            raise KeyboardInterrupt
        return str(caught.value)

    assert told() == begun
    with Store(path):
        pass
    assert told() == begun  # a file without results
    with Store(path) as store:
        store.compute("training", {}, 0, lambda: xr.Dataset({"loss": 0.5}))
    assert told() == kept
    path.write_bytes(b"no store")
    assert told() == kept  # who cannot look promises no loss


def test_device_or_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.svg")
    with pytest.raises(InputError, match=r"pipe\.svg, which is a device or a pipe; name a file"):
        check_file(tmp_path / "pipe.svg", "figure")
