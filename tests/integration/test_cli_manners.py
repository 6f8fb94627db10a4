"""Manners of every command: suggestions, colours, pipes, and Ctrl-C while a file is written."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from normscope.cli.main import main
from normscope.results import Store

NET = ["fully_connected", "--data", "digits", "--option", "width=6"]
SWEEP = ["--set", "gamma=0.5,1", "--set", "lr=0.1,1", "--set", "width=5", "--set", "samples=256"]
WRITING = {
    "lr": ["lr", *NET, "--batch-size", "32", "--no-verify", "-o", "{}/figure.svg"],
    "compare": [
        *("compare", *NET, "--batch-size", "32", "--no-verify", "--steps", "3"),
        *("--norms", "none,batch", "-o", "{}/figure.svg"),
    ],
    "curvature": ["curvature", *NET, "--batch-size", "32", "-o", "{}/figure.svg"],
    "theory": ["theory", "fully_connected", "--option", "width=6", "-o", "{}/figure.svg"],
    "run": ["run", "kohler2018/ols", "--out", "{}"],
    "sweep": ["sweep", "phase_diagram", *SWEEP, "--set", "epochs=1", "--out", "{}/figure.sqlite"],
}


@pytest.mark.parametrize("name", WRITING)
def test_interrupt_while_a_figure_is_written_leaves_the_old_one(
    name, tmp_path, monkeypatch, capsys
):
    def interrupted(figure, path, **options):
        Path(path).write_text("<half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", interrupted)
    old = tmp_path / "figure.svg"
    old.write_text("<old/>")
    assert main([part.format(tmp_path) for part in WRITING[name]]) == 130
    assert old.read_text() == "<old/>"
    assert capsys.readouterr().out == ""
    figures = [path for path in tmp_path.rglob("*") if path.suffix == ".svg"]
    assert figures == [old]
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "figure4"], "did you mean 'santurkar2018/figure4' or 'wei2018/figure4'?"),
        (["run", "Wei2018/figure1"], "did you mean 'wei2018/figure1'?"),
        (["sweep", "figure12"], "did you mean 'santurkar2018/figure12'?"),
        (["lr", "fully", "-d", "digits"], "did you mean 'fully_connected'?"),
        (["list", "norm"], "did you mean 'norms'?"),
        (["curvature", *NET, "--device", "cud"], "unknown device of this machine 'cud'"),
        (["curvature", *NET, "--kind", "fischer"], "did you mean 'fisher'?"),
        (["curvature", *NET, "--mode", "trian"], "did you mean 'train'?"),
        (["theory", "fully_connected", "--closure", "trian"], "did you mean 'train'?"),
        (["lr", *NET, "--jsno"], "--json"),
        (["lrr"], "Did you mean"),
        (["lr", "build", "-d", "digits"], "give file.py:build or package.module:build."),
        (["lr", "vgg", "-d", "mine"], "give file.py:samples or package.module:samples."),
        (["lr", "vgg", "-d", "digits", "--loss", "my"], "give file.py:loss or package.module:loss"),
        (["lr"], "Missing argument 'MODEL'. Example: normscope lr examples/my_model.py:build -"),
        (["theory"], "Missing argument 'MODEL'. Example: normscope theory fully_connected "),
    ],
)
def test_wrong_names_are_one_line_with_the_closest(arguments, message, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


PRINTING = """
from normscope.progress_bar import show_progress
from normscope.cli.render import print_table
from normscope.progress import Progress
print_table("Title [bold]", [{"name": "[red]net", "value": 0.5}])
with show_progress("parts [x]") as show:
    show(Progress("first"))
with show_progress("cells") as show:
    show(Progress(done=3, total=18, unit="cells"))
"""


def in_a_terminal(environment):
    """What a program prints into a terminal, both streams."""
    ours, theirs = pty.openpty()
    terminal = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"} | environment
    with subprocess.Popen(
        [sys.executable, "-c", PRINTING], stdout=theirs, stderr=theirs, env=terminal
    ):
        os.close(theirs)
        printed = b""
        try:
            while chunk := os.read(ours, 4096):
                printed += chunk
        except OSError:  # the terminal is gone with the program
            pass
    os.close(ours)
    return printed.decode()


COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|38;5|38;2|9[0-7])[;m]")


def test_terminal_gets_colours_progress_and_time_left():
    printed = in_a_terminal({})
    assert COLOUR.search(printed)
    assert "3 of 18 cells" in printed
    assert "0:00:0" in printed
    assert "[red]net" in printed  # no markup: it is the user's name


def test_no_color_is_obeyed():
    printed = in_a_terminal({"NO_COLOR": "1"})
    assert "[red]net" in printed
    assert not COLOUR.search(printed)


def test_piped_output_is_plain_and_what_is_soon_over_silent():
    done = subprocess.run(
        [sys.executable, "-c", PRINTING], capture_output=True, text=True, check=True
    )
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    assert "[red]net" in done.stdout


def test_device_of_this_machine_is_taken(capsys):
    assert main(["curvature", *NET, "--batch-size", "32", "--device", "cpu"]) == 0
    first = capsys.readouterr().out
    assert main(["curvature", *NET, "--batch-size", "32"]) == 0
    without_time = re.compile(r"[\d.]+ (m?s)\b")
    again = capsys.readouterr().out
    assert without_time.sub("", first) == without_time.sub("", again)


UNKNOWN = [
    ["list", "model"],
    ["run", "wei2018/figur2"],
    ["sweep", "phase_diagam"],
    ["lr", "fully_conected", "--data", "digits"],
    ["lr", "vgg", "--data", "digit"],
    ["lr", "vgg", "--data", "digits", "--optimizer", "adm"],
    ["compare", "vgg", "--data", "digits", "--norms", "none,bach"],
    ["curvature", "vgg", "--data", "digits", "--loss", "cross_entrpy"],
    ["theory", "vgg", "--norm", "bach"],
    ["check", "vg", "--data", "digits"],
    ["data", "path", "mnst"],
    ["lrr"],
]


def test_wrong_names_do_not_wait_for_torch():
    asking = (
        "import sys; from normscope.cli.main import main; "
        f"print([main(each) for each in {UNKNOWN!r}]); "
        "print({'torch', 'numpy', 'xarray', 'matplotlib', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True)
    assert done.stdout.splitlines()[-2:] == [str([2] * len(UNKNOWN)), "set()"]
    assert done.stderr.count("normscope: ") == done.stderr.count("\n") == len(UNKNOWN)


@pytest.mark.parametrize(
    "command", [["demo"], ["run", "wei2018/figure1"], ["sweep", "wei2018/figure1"]], ids=" ".join
)
def test_what_cannot_move_refuses_a_device(command, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--device", "meta"]) == 2
    assert "unknown device of this machine 'meta'" in capsys.readouterr().err
    monkeypatch.setattr("normscope.cli.sources.check_device", lambda device: None)
    assert main([*command, "--device", "cuda"]) == 2
    err = capsys.readouterr().err
    assert f"{command[-1]} computes on the cpu alone and cannot be moved to cuda" in err
    assert list(tmp_path.iterdir()) == []


def test_sweep_moves_to_a_device(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "phase_diagram", "--set", "gamma=1", "--set", "lr=0.1", "--out", "a.sqlite"]
    assert main([*command, "--device", "meta"]) == 2
    assert "unknown device of this machine 'meta'" in capsys.readouterr().err
    monkeypatch.setattr("normscope.cli.sources.check_device", lambda device: None)
    assert main([*command, "--device", "cpu:0"]) == 0  # another name of the one that is here
    with Store(tmp_path / "a.sqlite") as store:
        (record,) = store.select("phase_diagram")
    assert record.parameters["device"] == "cpu:0"


def test_misfit_is_one_line(capsys, tmp_path):
    source = tmp_path / "odd.py"
    source.write_text(
        "import torch\n"
        "def build(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 10))\n"
    )
    for command in (["curvature"], ["lr"], ["compare"]):
        assert main([*command, f"{source}:build", "--data", "digits"]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "layer '1' (Linear) expects 3 features, got an input of shape" in err


@pytest.mark.parametrize(
    ("value", "rule"), [("0", "at least 1"), ("x", "an integer"), ("1.5", "an integer")]
)
def test_value_out_of_its_range_is_refused_in_our_words(capsys, value, rule):
    command = ["lr", "fully_connected", "--data", "digits", "--batch-size", value]
    assert main(command) == 2
    assert capsys.readouterr().err == f"normscope: --batch-size must be {rule}.\n"
