"""The command line as a user meets it: exit codes, one-line errors, pipes, Ctrl-C."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import normscope


def wrong_size():
    """A user's model that does not fit the data."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 10))


def arrays():
    """A user's data that are not tensors."""
    return np.zeros((8, 1, 8, 8)), np.zeros(8)


COMMAND = [sys.executable, "-m", "normscope"]


def normscope_command(*arguments, **options):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, **options)


def test_version_is_the_packages():
    done = normscope_command("--version")
    assert (done.returncode, done.stdout) == (0, f"normscope {normscope.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dmo"], "Did you mean 'demo'?"),
        (["demo", "--seeed", "3"], "No such option: --seeed"),
        (["demo", "--seed", "x"], "must be an integer"),
        (["data", "path", "mnst"], "did you mean 'mnist'?"),
        (["data", "path", "mnist", "--root", "no-such-folder"], "no-such-folder"),
        (["demo", "--seed", "99999999999999999999"], "--seed"),
        (["demo", "--out", __file__], "is not a folder; choose another"),
        (
            ["curvature", "vgg", "-d", "digits", "-o", f"{__file__}/x.svg"],
            "is not a folder; choose another",
        ),
        (["curvature", "vgg", "-d", "digits", "--option", "norm=none"], "use --norm none"),
        (["curvature", "vgg", "-d", "digits", "--option", "width=abc"], "number above 0"),
        (["curvature", f"{__file__}:wrong_size", "-d", "digits"], "layer '1' (Linear) expects 3"),
        (["curvature", "conv_net", "-d", f"{__file__}:arrays"], "pair (inputs, targets)"),
    ],
)
def test_usage_and_input_errors_are_one_line_and_exit_2(arguments, message):
    done = normscope_command(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("normscope: ")


@pytest.mark.parametrize("command", [[], ["demo"], ["data"], ["data", "list"], ["data", "verify"]])
def test_help_explains_each_command(command):
    done = normscope_command(*command, "--help")
    assert done.returncode == 0
    assert "Usage: normscope" in done.stdout


def test_no_arguments_show_the_help():
    done = normscope_command()
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: normscope" in done.stdout


def test_shell_completion_offers_the_commands():
    asked = {"_NORMSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": "normscope d", "COMP_CWORD": "1"}
    done = normscope_command(env=os.environ | asked)
    assert {"demo", "data"} <= set(done.stdout.split())


def test_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [*COMMAND, "--help"], stdout=closed, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (0, "")
