from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.data.synthetic import SmallData

from normscope.cli.main import main


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NORMSCOPE_DATA", raising=False)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    data = SmallData()
    data.make_official(monkeypatch)
    return data.write_mnist(tmp_path / "data" / "mnist").parent


def test_list_shows_every_data_set(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["data", "list", "--root", str(root)]) == 0
    title, heads, _, *lines = capsys.readouterr().out.rstrip().splitlines()
    assert title == "data sets"
    assert max(map(len, lines)) <= max(120, len(str(root)) + 40)  # a path is not broken
    rows = [line for line in lines if not line.startswith(" ")]  # what is long goes on below
    assert heads.split() == ["name", "here", "what", "where"]
    here = {row.split()[0]: row.split()[1] for row in rows}
    assert here == {"cifar10": "no", "digits": "yes", "gaussian": "yes", "mnist": "yes"}
    assert rows[-1].endswith(str(root / "mnist"))
    assert rows[1].endswith("needs no files")


def test_list_as_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--root", str(root), "--json"]) == 0
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    assert list(found) == ["cifar10", "digits", "gaussian", "mnist"]
    assert found["mnist"]["where"] == str(root / "mnist")
    assert found["cifar10"]["present"] is False


def test_path_prints_the_folder(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "path", "mnist", "--root", str(root)]) == 0
    assert capsys.readouterr().out == f"{root / 'mnist'}\n"
    assert main(["data", "path", "mnist", "--root", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "mnist", "path": str(root / "mnist")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["path", "cifar10"], "cifar10 is not in"),
        (["verify", "cifar10"], "get it with: normscope data fetch cifar10"),
        (["path", "cifar"], "did you mean 'cifar10'?"),
        (["path", "mnist", "--root", "/absent"], "is not a folder"),
        (["path"], "Missing argument"),
    ],
)
def test_errors_are_one_line_and_exit_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_missing_files_name_the_variable_only_if_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "verify", "mnist"]) == 2
    assert "NORMSCOPE_DATA" not in capsys.readouterr().err
    monkeypatch.setenv("NORMSCOPE_DATA", str(tmp_path))
    assert main(["data", "verify", "mnist"]) == 2
    assert f"mnist is not in {tmp_path} ($NORMSCOPE_DATA) or " in capsys.readouterr().err


def test_command_alone_names_its_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 2
    assert capsys.readouterr().err == (
        "normscope: Missing command. Choose one of fetch, list, path, verify. "
        "Example: normscope data list\n"
    )


def test_verify_says_ok_per_file(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "verify", "mnist", "--root", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("ok") for line in lines)


def test_verify_without_a_name_takes_all_that_are_here(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "verify", "--root", str(root)]) == 0
    assert capsys.readouterr().out.count("ok  ") == 4
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"garbage")
    assert main(["data", "verify", "--root", str(root), "--json"]) == 1
    assert [check["ok"] for check in json.loads(capsys.readouterr().out)] == [True] * 3 + [False]
    (tmp_path / "empty").mkdir()
    assert main(["data", "verify", "--root", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out.startswith("no data set that has files is here")
    assert main(["data", "verify", "--root", str(tmp_path / "absent")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_verify_exits_1_if_a_file_differs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"garbage")
    assert main(["data", "verify", "mnist", "--root", str(root), "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)
    assert [check["ok"] for check in checks] == [True, True, True, False]
    assert main(["data", "verify", "mnist", "--root", str(root)]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_fetch_of_embedded_data_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "fetch", "digits"]) == 0
    assert capsys.readouterr().out == "digits needs no files\n"
    assert main(["data", "fetch", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "digits", "path": None}


@pytest.mark.parametrize("command", ["list", "path", "fetch", "verify"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", command, "--help"]) == 0
    assert f"Example: normscope data {command}" in capsys.readouterr().out


def test_command_module_loads_nothing_heavy() -> None:
    program = (
        "import sys, normscope.cli.data\n"
        "print([name for name in ('torch', 'numpy', 'sklearn', 'pooch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_data_command_runs_as_a_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "normscope", "data", "path", "digits"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=dict(os.environ),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "digits needs no files\n", "")
