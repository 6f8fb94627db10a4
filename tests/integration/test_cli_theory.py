"""``normscope theory`` from its arguments to its exit code."""

import json
import math
import re
import sys
from pathlib import Path

import pytest

from normscope.cli.main import main
from normscope.meanfield import fully_connected_specification, predict

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_model.py"


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def answered(capsys, *arguments):
    assert main(["theory", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_holds_the_prediction(capsys):
    found = answered(capsys, "fully_connected", "--momentum", "0.9")
    (train,) = found["closures"]
    expected = predict(fully_connected_specification()).lambda_max
    assert train["lambda_max"] == pytest.approx(expected, rel=1e-4)
    assert train["max_learning_rate"] == pytest.approx(3.8 / expected, rel=1e-4)
    assert train["regime"] == "head"
    assert [row["name"] for row in train["layers"]][-1] == "head"


def test_all_closures_over_a_sweep_are_drawn(capsys, tmp_path):
    figure = tmp_path / "new folder" / "theory.svg"
    options = ["--gamma", "0.1:3:5", "--closure", "all", "--out", str(figure)]
    assert main(["theory", "fully_connected", "--option", "width=100", *options]) == 0
    out = capsys.readouterr().out
    for closure in ("train", "frozen", "printed"):
        assert f"closure {closure}" in out
    assert out.count("\ngamma  lambda_max") == 3
    assert f"Figure: {figure}" in out
    assert figure.read_text(encoding="utf-8").lstrip().startswith("<?xml")


def test_plot_has_a_place_of_its_own(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["theory", "fully_connected", "--option", "width=50", "--plot"]) == 0
    assert (tmp_path / "theory.svg").is_file()
    assert "Figure: theory.svg" in capsys.readouterr().out


def test_gamma_is_a_number_a_list_or_a_range(capsys):
    small = ["fully_connected", "--option", "width=400"]
    one = answered(capsys, *small, "--gamma", "2")["closures"][0]
    assert one["lambda_max"] == pytest.approx(400 * 4 / (2 * math.pi), rel=1e-3)
    several = answered(capsys, *small, "--gamma", "1,2")["closures"][0]
    assert several["gamma"] == [1.0, 2.0]
    assert several["lambda_max"][1] == pytest.approx(one["lambda_max"])


def test_networks_beyond_the_paper_have_the_other_closures(capsys):
    found = answered(
        capsys,
        "preact_resnet18",
        "--option",
        "width=0.1",
        "--option",
        "input_shape=(3, 8, 8)",
        "--closure",
        "all",
    )
    assert [each["closure"] for each in found["closures"]] == ["train", "frozen"]
    assert "do not cover" in found["refused"]["printed"]


def test_data_give_the_inputs_moments_and_the_batch(capsys):
    found = answered(
        capsys, "fully_connected", "--option", "width=100", "--data", "digits", "--batch-size", "64"
    )
    (train,) = found["closures"]
    assert train["batch_size"] == 64
    assert train["layers"][0]["inputs"] == 64
    assert train["layers"][0]["input_pair"] != 0


def test_undetermined_is_null(capsys):
    small = ["fully_connected", "--option", "width=100", "--option", "activation=tanh"]
    (train,) = answered(capsys, *small)["closures"]
    assert train["lambda_max"] is None
    assert train["max_learning_rate"] is None
    swept = answered(capsys, *small, "--gamma", "1,2")["closures"][0]
    assert swept["lambda_max"] == [None, None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fully_conected"], "did you mean 'fully_connected'"),
        (["fully_connected", "--closure", "trian"], "did you mean 'train'"),
        (["fully_connected", "--gamma", "1:2"], "first:last:count"),
        (["fully_connected", "--gamma", "-1"], "above 0"),
        (["fully_connected", "--norm", "linf"], "no closure here for the module LpNorm1d"),
        (["conv_net", "--input-shape", "a,b"], "sizes such as 3,32,32"),
        (["fully_connected", "--out", "theory.xyz"], "figure format"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(capsys, arguments, said):
    assert main(["theory", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_text_says_what_the_numbers_are_for(capsys):
    model = ["fully_connected", "--option", "width=100", "--data", "digits"]
    assert main(["theory", *model]) == 0
    out = capsys.readouterr().out
    assert "Predicted: the Fisher matrix, which is the curvature of half the squared error" in out
    assert "inputs of digits, weights alone" in out
    assert "q_xy" not in out
    assert "output²: mean square of an output" in out
    assert re.search(r"^regime head \(the last layer decides\): ", out, re.MULTILINE)
    (limit,) = re.findall(r"learning rates below ([\d.]+) \(closure train\)", " ".join(out.split()))
    assert f"normscope lr {model[0]} --data digits measures the limit" in out
    assert "% of lambda_max (the shares of the layers are of the lower bound per output)" in (
        " ".join(out.split())
    )
    assert main(["lr", *model, "--no-verify", "--json"]) == 0  # other batches of the same data
    assert json.loads(capsys.readouterr().out)["theory"] == pytest.approx(float(limit), rel=0.05)


def test_unknown_size_of_the_input_asks_for_the_option(capsys, tmp_path):
    source = tmp_path / "convolution.py"
    source.write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))\n"
    )
    assert main(["theory", f"{source}:build"]) == 2
    assert "give --input-shape, such as --input-shape 3,32,32, or --data" in capsys.readouterr().err
    assert main(["theory", f"{source}:build", "--input-shape", "3,9,9"]) == 2
    assert "input_shape" not in capsys.readouterr().err
    assert main(["theory", f"{source}:build", "--input-shape", "3,8,8"]) == 0
    assert "With 5 outputs its eigenvalues" in " ".join(capsys.readouterr().out.split())


def test_help_has_an_example(capsys):
    assert main(["theory", "--help"]) == 0
    assert "Example: normscope theory fully_connected" in capsys.readouterr().out
