"""Ctrl-C gives the same exit code wherever in the start it comes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import normscope.cli.main
from normscope.cli.start import start


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """The command's end ignores Ctrl-C; the tests' process goes on."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_start_returns_what_the_command_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normscope.cli.main, "main", lambda: 7)
    assert start() == 7


def test_start_answers_an_interrupt_that_escapes_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(normscope.cli.main, "main", interrupted)
    assert start() == 130
    assert capsys.readouterr().err == "normscope: interrupted\n"


def test_process_exits_with_130_though_the_interrupt_left_an_exec() -> None:
    """Python would otherwise end itself by the signal: the return code would be -2."""
    program = """
import sys
import normscope.cli.main as module
from normscope.cli.start import start

def main():
    exec("raise KeyboardInterrupt")

module.main = main
sys.exit(start())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"normscope: interrupted\n")


def test_interrupt_after_the_answer_changes_nothing() -> None:
    """Python would otherwise be ended by the signal while it takes itself down, without a word."""
    program = """
import atexit, os, signal, sys
import normscope.cli.main as module
from normscope.cli.start import start

atexit.register(os.kill, os.getpid(), signal.SIGINT)

def main():
    print("the answer")
    return 1

module.main = main
sys.exit(start())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"the answer\n", b"")
