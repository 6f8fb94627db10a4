"""Shell completion, by the protocol that the shell speaks: names come, and torch does not."""

import os
import subprocess
import sys

import pytest

from normscope.experiments import EXPERIMENTS
from normscope.models import MODELS

COMMAND = [sys.executable, "-m", "normscope"]


def completed(line, *options):
    """What bash would offer for the last word of a line."""
    words = line.split(" ")
    asked = {
        "_NORMSCOPE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, *options, "-m", "normscope"],
        capture_output=True,
        text=True,
        env=os.environ | asked,
        check=False,
    )
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("normscope d", {"demo", "doctor", "data"}),
        ("normscope run ", set(EXPERIMENTS)),
        ("normscope run wei2018/", {name for name in EXPERIMENTS if name.startswith("wei2018/")}),
        ("normscope lr ", set(MODELS)),
        ("normscope curvature v", {"vgg", "vgg16"}),
        ("normscope list p", {"probes"}),
        ("normscope curvature vgg --kind g", {"ggn"}),
        ("normscope lr vgg --data ci", {"cifar10"}),
        ("normscope lr vgg --norm la", {"layer"}),
        ("normscope run wei2018/figure1 --scale s", {"small"}),
        ("normscope data path m", {"mnist"}),
    ],
)
def test_completion_offers_registered_names(line, expected):
    assert set(completed(line)[0]) == expected


def test_completion_does_not_wait_for_torch():
    offered, imports = completed("normscope run ", "-X", "importtime")
    assert offered
    loaded = {line.rpartition("|")[2].strip() for line in imports.splitlines()}
    assert "normscope.cli.names" in loaded
    assert not loaded & {"torch", "numpy", "xarray", "matplotlib", "scipy"}


def test_completion_script_is_shown():
    done = subprocess.run(
        [*COMMAND, "--show-completion"],
        capture_output=True,
        text=True,
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        check=False,
    )
    assert "normscope" in done.stdout + done.stderr


def test_completion_is_installed_for_bash(tmp_path):
    """In a home of its own, where a shell then finds it."""
    asked = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [*COMMAND, "--install-completion", "bash"],
        capture_output=True,
        text=True,
        env=os.environ | asked,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    scripts = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_NORMSCOPE_COMPLETE" in path.read_text(encoding="utf-8") for path in scripts)
