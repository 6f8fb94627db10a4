"""``normscope doctor`` on the example with three faults, and on a healthy network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from normscope.cli.main import main

ROOT = Path(__file__).parents[2]
FAULTY = [str(ROOT / "examples" / "faulty_model.py:build")]
FAULTY += ["--data", str(ROOT / "examples" / "faulty_model.py:samples")]
HEALTHY = ["fully_connected", "--option", "width=20", "--data", "digits", "--batch-size", "64"]
NAMES = ["dead_channels", "large_eps", "norm_before_output"]


def run(capsys, *arguments):
    code = main(["doctor", *arguments])
    return code, capsys.readouterr()


def test_three_faults_as_json_sarif_and_page(capsys, tmp_path):
    sarif, page = tmp_path / "found.sarif", tmp_path / "found.html"
    code, shown = run(capsys, *FAULTY, "--json", "--sarif", str(sarif), "-o", str(page))
    assert code == 0
    answer = json.loads(shown.out)
    assert [each["name"] for each in answer["findings"]] == NAMES
    assert [each["module"] for each in answer["findings"]] == ["3", "1", "7"]
    assert answer["passes"] < 20
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert [each["ruleId"] for each in results] == NAMES
    location = results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert location.endswith("examples/faulty_model.py")
    assert all(name in page.read_text() for name in NAMES)


def test_strict_exits_with_one_and_lines_fit(capsys):
    code, shown = run(capsys, *FAULTY, "--strict")
    assert code == 1
    assert shown.out.startswith("Diagnosis: 3 warnings (23 checks, ")
    assert all(len(line) <= 80 for line in shown.out.splitlines())


def test_healthy_network_passes_strict_with_an_optimizer(capsys):
    code, shown = run(capsys, *HEALTHY, "--optimizer", "sgd", "--lr", "0.1", "--strict")
    assert code == 0, shown.out


def test_rate_that_is_too_high_is_found(capsys):
    options = ["--optimizer", "adam", "--lr", "100"]
    code, shown = run(capsys, *HEALTHY, *options, "--strict", "--json")
    assert code == 1
    found = [each["name"] for each in json.loads(shown.out)["findings"]]
    assert "learning_rate_too_high" in found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lr", "0.1"], "--lr is of an optimizer"),
        (["--optimizer", "sgd"], "sgd needs a learning rate"),
        *(
            (
                ["--optimizer", "sgd", f"--lr={rate}"],
                f"--lr must be a finite number from 0 on, got {rate}",
            )
            for rate in ("nan", "inf", "-1.0")
        ),
        (["--optimizer", "adma"], "did you mean 'adam'"),
        (["--optimizer", "adam", "--momentum", "0.9"], "--momentum is an option of sgd"),
    ],
)
def test_options_that_do_not_fit_are_rejected(capsys, options, message):
    code, shown = run(capsys, *HEALTHY, *options)
    assert code == 2
    assert message in shown.err


def test_sarif_of_a_registered_model_names_no_file(capsys, tmp_path):
    data, sarif = tmp_path / "mine.py", tmp_path / "found.sarif"
    data.write_text(
        "import torch\n\n\ndef samples():\n    return torch.zeros(64, 8), torch.arange(64) % 4\n"
    )
    model = ["fully_connected", "--option", "width=5"]
    code, _ = run(capsys, *model, "--data", f"{data}:samples", "--sarif", str(sarif))
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert code == 0
    assert results
    assert all("physicalLocation" not in each["locations"][0] for each in results)
