"""Ctrl-C gives the same exit code wherever in the start it comes."""

from __future__ import annotations

import atexit
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

import normscope.cli.main
from normscope.cli import start as module
from normscope.cli.start import start


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """The command's end takes Ctrl-C away; the tests' process goes on."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    atexit.unregister(signal.signal)
    atexit.unregister(module._exit_if_interrupted)
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


def test_second_interrupt_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to say: no traceback, whatever line it comes on."""
    monkeypatch.setattr(normscope.cli.main, "main", lambda: 130)
    assert start() == 130
    assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL


def test_interrupt_that_is_ignored_from_outside_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for code in (0, 130):
        monkeypatch.setattr(normscope.cli.main, "main", lambda code=code: code)
        assert start() == code
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.parametrize("line", range(2, 7))
def test_interrupt_on_any_line_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: int
) -> None:
    """The code is that of the command once there is one, and 130 before."""
    seen = []

    def at_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            seen.append(frame.f_lineno)
            if len(seen) == line + 1:  # from the first inside the try
                os.kill(os.getpid(), signal.SIGINT)
        return at_line

    def in_start(frame: FrameType, _: str, __: object) -> Any:
        return at_line if frame.f_code is start.__code__ else None

    ended: list[bool] = []
    monkeypatch.setattr(module, "_leave_threads", lambda code: None)  # the tests have their own
    monkeypatch.setattr(normscope.cli.main, "main", lambda: len(ended.append(True) or ended))
    before = sys.gettrace()
    sys.settrace(in_start)
    try:
        code = start()
    finally:
        sys.settrace(before)
    assert len(seen) > line
    assert code == (1 if ended else 130)
    assert capsys.readouterr().err == ("" if ended else "normscope: interrupted\n")


def test_interrupt_ends_the_wait_for_a_thread_and_keeps_the_code() -> None:
    program = """
import os, signal, sys, threading, time
import normscope.cli.main as module
from normscope.cli.start import start

def press():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

def main():
    threading.Thread(target=press).start()
    print("the answer")
    return 1

module.main = main
sys.exit(start())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"the answer\n", b"")


def test_letter_that_an_encoding_lacks_is_no_error(monkeypatch):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    monkeypatch.setattr(sys, "argv", ["normscope", "--version"])
    normscope.cli.main.main()
    print("λ max")
    narrow.flush()
    assert narrow.buffer.getvalue().endswith(b"? max\n")
