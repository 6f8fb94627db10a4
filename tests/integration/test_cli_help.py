"""Every help text: an example that parses, and the same words for the same options."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import typer
from tests.references.command_line import parse

from normscope.cli.main import app, main

COMMAND = typer.main.get_command(app)
LEAVES = sorted(
    [[name] for name, each in COMMAND.commands.items() if not hasattr(each, "commands")]
    + [["data", name] for name in COMMAND.commands["data"].commands]
)
GROUPS = [[], ["data"]]


def named(path):
    return " ".join(path) or "normscope"


def help_of(path, capsys, monkeypatch, columns="80"):
    monkeypatch.setenv("COLUMNS", columns)
    assert main([*path, "--help"]) == 0
    return capsys.readouterr().out


def example_in(text):
    """The command as a shell reads it, whose lines end on a backslash where it goes on."""
    (example,) = re.findall(r"^ *Example: (normscope (?:.*\\\n)*.*)$", text, re.MULTILINE)
    return example.replace("\\\n", "")


def command_at(path):
    command = COMMAND
    for name in path:
        command = command.commands[name]
    return command


@pytest.mark.parametrize("path", [*GROUPS, *LEAVES], ids=named)
def test_example_parses_as_it_stands_in_a_narrow_terminal(path, capsys, monkeypatch):
    text = help_of(path, capsys, monkeypatch, columns="60")
    example = example_in(text)
    arguments = shlex.split(example)[1:]
    assert arguments[: len(path)] == path
    context = parse(arguments)
    assert named([*path]) in context.command_path


SPELLED = {  # how a shared option is written, and what its help calls the value
    "--json": ({"--json"}, {None}),
    "--seed": ({"--seed"}, {"NUMBER"}),
    "--device": ({"--device"}, {"DEVICE"}),
    "--out": ({"--out", "-o"}, {"FIGURE", "FOLDER", "FILE"}),
}
COMPUTING = (
    *(
        "lr",
        "compare",
        "doctor",
        "curvature",
        "landscape",
        "theory",
        "check",
        "demo",
        "run",
        "sweep",
    ),
)
LACKING = {("check", "--out"), ("theory", "--device")}  # docs/reference/command_line.md says why


@pytest.mark.parametrize("path", LEAVES, ids=named)
def test_shared_options_are_spelled_alike(path):
    parameters = command_at(path).params
    for each in parameters:
        for name, (spelled, values) in SPELLED.items():
            if each.name in (name[2:], f"as_{name[2:]}") or name in each.opts:
                assert spelled <= set(each.opts), name  # data fetch says --root too
                assert each.metavar in values, name
    assert not {"-o", "-s", "-j"} & {o for p in parameters for o in p.opts if "--out" not in p.opts}


def test_commands_that_compute_have_the_shared_options_but_where_the_docs_say_why():
    found = {
        (name, option)
        for name in COMPUTING
        for option in SPELLED
        if not any(option in each.opts for each in command_at([name]).params)
    }
    assert found == LACKING
    page = Path(__file__).parents[2] / "docs" / "reference" / "command_line.md"
    said = " ".join(page.read_text(encoding="utf-8").split())
    assert all(f"`{name}` has no `{option}`" in said for name, option in LACKING)


QUICK = [["theory"], ["curvature"], ["landscape"], ["list"], ["data", "list"]]


@pytest.mark.parametrize("path", QUICK, ids=named)
def test_example_runs_as_it_stands(path, capsys, monkeypatch, tmp_path):
    """Those that take seconds; the others are tested with smaller settings of their own."""
    text = help_of(path, capsys, monkeypatch)
    example = example_in(text)
    (tmp_path / "examples").symlink_to(Path(__file__).parents[2] / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(shlex.split(example)[1:]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", LEAVES, ids=named)
def test_command_has_json_and_says_what_every_option_is(path):
    command = command_at(path)
    options = {name for each in command.params for name in each.opts}
    assert "--json" in options
    for each in command.params:
        assert getattr(each, "help", None), f"{named(path)} {each.name}"
        assert each.help.endswith("."), f"{named(path)} {each.name}"


SHARED = (
    *("--json", "--loss", "--norm", "--option", "--device", "--no-verify", "--data"),
    *("--batch-size", "--momentum"),
)
OWN_WORDS = {
    ("theory", "--data"),  # measures the inputs' moments only
    ("curvature", "--loss"),  # counts for some kinds only
}


@pytest.mark.parametrize("option", SHARED)
def test_shared_option_has_the_same_words_everywhere(option):
    found = {
        each.help
        for path in LEAVES
        if (path[0], option) not in OWN_WORDS
        for each in command_at(path).params
        if option in each.opts
    }
    assert len(found) == 1, found


def test_own_words_of_a_shared_option_begin_as_elsewhere():
    words = {
        path: next(each.help for each in command_at([path]).params if "--loss" in each.opts)
        for path in ("lr", "curvature")
    }
    assert words["curvature"].startswith(words["lr"])
    assert "Not used by --kind fisher" in words["curvature"]


def test_lr_and_sweep_say_which_loss_they_have_and_why(capsys, monkeypatch):
    text = " ".join(help_of(["sweep"], capsys, monkeypatch).split())
    assert "default loss of phase_diagram is squared_error" in text
    assert "as in wei2018" in text
    assert "--set loss=cross_entropy changes it" in text
    text = " ".join(help_of(["lr"], capsys, monkeypatch).split())
    assert "default loss is cross_entropy, which classifiers are trained with" in text
    assert "sweep has squared_error, as in wei2018" in text


@pytest.mark.parametrize("path", LEAVES, ids=named)
def test_output_is_named_the_same_everywhere(path):
    for each in command_at(path).params:
        if "--out" in each.opts:
            assert "-o" in each.opts
        if "--seed" in each.opts:
            assert "seed" in each.help.lower()
        if "--scale" in each.opts:
            assert all(scale in each.help for scale in ("quick", "small", "paper"))


@pytest.mark.parametrize(
    "path",
    [["curvature"], ["lr"], ["compare"], ["check"], ["theory"]],
    ids=named,
)
def test_models_and_devices_are_offered_alike(path):
    options = {name for each in command_at(path).params for name in each.opts}
    assert {"--norm", "--option", "--seed"} - options <= (
        {"--norm"} if path == ["compare"] else set()
    )
    assert "--device" in options or path == ["theory"]


def test_first_help_names_every_command_with_one_line(capsys, monkeypatch):
    text = help_of([], capsys, monkeypatch)
    for name in COMMAND.commands:
        assert re.search(rf"^  {name} +\S.*$", text, re.MULTILINE), name
    assert "--install-completion" in text
    assert "--show-completion" in text


@pytest.mark.parametrize("path", [*GROUPS, *LEAVES], ids=named)
def test_help_names_arguments_plainly_and_cuts_nothing(path, capsys, monkeypatch):
    text = help_of(path, capsys, monkeypatch)
    shown, *_ = text.partition("Example: ")
    assert "{" not in shown
    assert not re.search(r"<\w+", shown)
    commands = shown.partition("Commands:")[2]
    assert "..." not in commands


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("path", [*GROUPS, *LEAVES, ["sweep", "status"]], ids=named)
def test_no_line_of_a_help_is_longer_than_the_terminal(path, columns, capsys, monkeypatch):
    text = help_of(path, capsys, monkeypatch, columns=str(columns))
    assert [line for line in text.splitlines() if len(line) > columns] == []
    assert "Example: " in text


def test_status_of_a_sweep_has_a_help_of_its_own(capsys, monkeypatch):
    text = help_of(["sweep", "status"], capsys, monkeypatch)
    assert text.startswith("Usage: normscope sweep status [OPTIONS] FILE")
    assert "--follow" in text
    assert "--workers" not in text
    example = example_in(text)
    assert parse(shlex.split(example)[1:]).params["follow"] is True


def test_sweep_says_from_where_on_the_advisor_calls_a_loss_unstable(capsys):
    main(["sweep", "--help"])
    said = " ".join(re.sub(r"[│|]", " ", capsys.readouterr().out).split())
    assert "unstable beyond 1.5 times (3 times for the squared error)" in said


def groups_in(text):
    """The options by heading."""
    parts = re.split(r"^(\w[\w ]*):\n", text.partition("Example: ")[0], flags=re.MULTILINE)
    found = {}
    for heading, lines in zip(parts[1::2], parts[2::2], strict=True):
        found[heading] = re.findall(r"^  (?:-\w, )*(-[-\w]+)", lines, re.MULTILINE)
    return found


GROUPED = {
    "lr": ["Model and data", "Training", "Search", "Output"],
    "compare": ["Model and data", "Comparison", "Training", "Output"],
    "doctor": ["Model and data", "Training", "Checks", "Output"],
    "curvature": ["Model and data", "Search", "Output"],
    "landscape": ["Model and data", "Directions and grid", "Computation", "Output"],
    "theory": ["Prediction", "Model and data", "Training", "Output"],
    "check": ["Checks", "Model and data", "Output"],
    "run": ["Experiment", "Output"],
    "sweep": ["Experiment and grid", "Computation", "With status", "Output"],
}


@pytest.mark.parametrize("name", GROUPED)
def test_long_help_groups_its_options_and_ends_with_the_output(name, capsys, monkeypatch):
    found = groups_in(help_of([name], capsys, monkeypatch))
    assert list(found) == ["Arguments", *GROUPED[name]]
    assert all(found[heading] for heading in GROUPED[name])
    assert {"--json", "--help"} <= set(found["Output"])
    if "Model and data" in found:
        assert {"--data", "--seed", "--batch-size"} <= set(found["Model and data"])


@pytest.mark.parametrize("path", [["demo"], ["report"], ["list"], ["data", "fetch"]], ids=named)
def test_short_help_is_one_list(path, capsys, monkeypatch):
    found = groups_in(help_of(path, capsys, monkeypatch))
    assert [heading for heading in found if heading != "Arguments"] == ["Options"]


@pytest.mark.parametrize("path", LEAVES, ids=named)
def test_default_in_words_has_no_parentheses(path, capsys, monkeypatch):
    text = help_of(path, capsys, monkeypatch)
    assert not re.search(r"default:\s+\(", text)
