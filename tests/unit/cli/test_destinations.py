"""Where commands write: refused before the work if it cannot be, and no answer lost after it."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from normscope.cli.destinations import check_file, check_folder, printing_first
from normscope.cli.main import main
from normscope.errors import InputError


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
        with pytest.raises(InputError, match=r"^the files cannot go to .*taken is no folder; "):
            check_folder(tmp_path / "taken" / deeper, "files")


@pytest.mark.parametrize("place", ["x.svg", "new/x.svg"])
def test_reason_of_the_system_is_told(place, tmp_path, monkeypatch):
    def refuse(path, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir" if "/" in place else "open", refuse)
    said = r"cannot be written into \(Permission denied\); choose another\.$"
    with pytest.raises(InputError, match=said):
        check_file(tmp_path / place, "figure")
    assert list(tmp_path.iterdir()) == []


def test_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot be written into \("):
        check_file(tmp_path / f"{'x' * 250}.svg", "figure")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that even root has not")
def test_folder_that_nobody_can_make_is_refused():
    assert os.access("/proc", os.X_OK)
    with pytest.raises(InputError, match=r"^the figure cannot go to /proc/nope: /proc cannot be"):
        check_file(Path("/proc/nope/x.svg"), "figure")


def test_answer_is_printed_before_the_failure_to_write(capsys):
    def fail():
        raise OSError(errno.ENOSPC, "No space left on device", "x.svg")

    def answer():
        with printing_first(fail) as written:
            print(f"the answer, {written}")

    with pytest.raises(OSError, match="No space left"):
        answer()
    assert capsys.readouterr().out == "the answer, None\n"
    with printing_first(lambda: "x.svg") as written:
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
    assert "taken is no folder; choose another.\n" in capsys.readouterr().err
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
    assert len(out.splitlines()) > 5
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
