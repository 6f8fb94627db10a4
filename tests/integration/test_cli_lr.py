"""``normscope lr`` and ``normscope compare`` from their arguments to their exit codes."""

import importlib
import json
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from normscope.cli.main import main
from normscope.data import load
from normscope.learning_rate import max_learning_rate
from normscope.models import build

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "my_model.py"
SMALL = ["fully_connected", "--data", "digits", "--option", "width=6", "--batch-size", "32"]


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_json_is_the_advice_of_the_library(capsys):
    assert main(["lr", *SMALL, "--momentum", "0.9", "--effort", "thorough", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    data = load("digits").train
    model = build("fully_connected", input_shape=(1, 8, 8), width=6)
    options = {"batch_size": 32, "effort": "thorough"}
    expected = max_learning_rate(model, "cross_entropy", data, 0.9, **options).to_dict()
    for name in ("curvature_bound", "limit", "recommended", "predicted", "verified", "interval"):
        assert found[name] == pytest.approx(expected[name])
    assert (found["model"], found["data"], found["momentum"]) == ("fully_connected", "digits", 0.9)
    assert found["verification_steps"] <= 600


def test_own_model_by_file_and_by_module_name(capsys, monkeypatch):
    arguments = ["--batch-size", "64", "--no-verify"]
    assert main(["lr", f"{EXAMPLE}:build", "--data", f"{EXAMPLE}:samples", *arguments]) == 0
    out = capsys.readouterr().out
    first, limit, how = out.splitlines()[:3]
    assert re.fullmatch(r"recommended  [\d.]+, half the limit", first)
    assert re.fullmatch(r"limit        [\d.]+ predicted, perhaps [\d.]+ to [\d.]+", limit)
    assert how.startswith("found by     not verified: predicted without runs; ")
    assert how.endswith(" s; SGD, batch size 64")
    assert all(len(line) <= 80 for line in out.splitlines())
    monkeypatch.chdir(ROOT)
    places = ["examples.my_model:build", "--data", "examples.my_model:samples"]
    assert main(["lr", *places, *arguments]) == 0
    by_name = capsys.readouterr().out
    assert by_name.splitlines()[:2] == [first, limit]
    note = "Measured: examples.my_model:build with cross_entropy on examples.my_model:samples"
    assert note in " ".join(by_name.split())


def test_explanation_is_a_table_and_a_paragraph(capsys):
    assert main(["lr", *SMALL, "--no-verify", "--explain"]) == 0
    out = capsys.readouterr().out
    heading, heads, rule, first = out.splitlines()[:4]
    assert heading == "Learning rate for SGD, batch size 32"
    assert heads.split() == ["quantity", "value", "remark"]
    assert set(rule) == {"-"}
    assert first.startswith("recommended ")
    assert "not asked for" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert re.search(r"^lambda_max .* measured: Gauss-Newton matrix of the loss", out, re.MULTILINE)


def test_effort_and_objective_reach_the_library(capsys):
    assert main(["lr", *SMALL, "--effort", "quick", "--json"]) == 0
    quick = json.loads(capsys.readouterr().out)
    assert (quick["effort"], quick["objective"], quick["choice"]) == ("quick", "cautious", None)
    assert quick["verification_steps"] <= 30
    assert main(["lr", *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["effort"], found["objective"]) == ("default", "fastest")
    assert found["recommended"] == found["choice"]["rate"]
    assert found["verification_steps"] + found["choice"]["spent"] <= 300
    assert main(["lr", *SMALL, "--objective", "half_limit", "--json"]) == 0
    half = json.loads(capsys.readouterr().out)
    assert half["recommended"] == pytest.approx(half["limit"] / 2)


@pytest.mark.parametrize("command", ["lr", "compare"])
@pytest.mark.parametrize(("loss", "limit"), [("cross_entropy", "1.5"), ("squared_error", "3")])
def test_output_says_what_counts_as_unstable(command, loss, limit, capsys):
    steps = ["--steps", "2", "--norms", "batch"] if command == "compare" else ["--explain"]
    assert main([command, *SMALL, "--no-verify", "--loss", loss, *steps]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"not finite, or beyond {limit} times its first value" in out


@pytest.mark.parametrize(("loss", "last"), [("cross_entropy", "instead"), ("squared_error", "too")])
def test_theory_is_set_against_the_loss_that_was_asked_for(loss, last, capsys):
    assert main(["lr", *SMALL, "--no-verify", "--loss", loss, "--explain"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.endswith(f"normscope theory is about half the squared error {last}.")


def test_theory_is_said_to_be_of_another_matrix(capsys):
    assert main(["lr", *SMALL, "--no-verify", "--explain"]) == 0
    table = " ".join(capsys.readouterr().out.split())  # remarks are wrapped
    row = table[table.index("theory ") :]
    numbers = (
        r"([\d.]+) +lambda_max predicted ([\d.]+): ([\d.]+) of the Fisher matrix times ([\d.]+)"
    )
    rate, predicted, fisher, factor = map(float, re.search(numbers, row).groups())
    assert rate == pytest.approx(2 / predicted, rel=0.01)
    assert predicted == pytest.approx(fisher * factor, rel=0.01)
    assert factor < 1


def test_compare_tells_which_norm_is_on(monkeypatch, capsys):
    events = []

    @contextmanager
    def log(label):
        yield events.append

    monkeypatch.setattr("normscope.cli.sources.show_progress", log)
    options = ["--norms", "none,batch", "--steps", "2", "--no-verify", "--json"]
    assert main(["compare", *SMALL, *options]) == 0
    assert list(dict.fromkeys(event.stage for event in events)) == ["none", "batch"]
    assert events[-1].detail == "training at half the limit"
    counts = dict.fromkeys(event.count for event in events)
    assert list(counts) == ["0 of 2 normalizations", "1 of 2 normalizations"]
    events.clear()
    assert main(["lr", *SMALL, "--no-verify", "--json"]) == 0
    assert {"curvature", "prediction"} <= {event.stage for event in events}


def test_compare_takes_the_optimizer_and_says_what_it_is_of(capsys):
    options = ["--norms", "batch", "--steps", "2", "--no-verify"]
    own = ["--momentum", "0.5", "--nesterov", "--weight-decay", "0.01"]
    assert main(["compare", *SMALL, *options, *own]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "* predicted: no run has verified the limit." in out
    assert "loss: training loss at half the limit, mean of all steps." in out
    assert out.endswith(
        "Measured: fully_connected with cross_entropy on digits, SGD, momentum 0.5 (Nesterov), "
        "weight decay 0.01, batches of 32, all parameters."
    )
    assert main(["compare", *SMALL, *options, "--optimizer", "adam", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["norms"]
    assert row["advice"]["optimizer"] == "Adam"


FROZEN = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    hidden = [nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(8, 10)).eval()
"""


@pytest.mark.parametrize("command", ["lr", "compare"])
def test_model_is_measured_as_it_is_unless_a_mode_is_asked_for(command, tmp_path, capsys):
    (tmp_path / "frozen.py").write_text(FROZEN)
    arguments = [command, f"{tmp_path / 'frozen.py'}:build", "--data", "digits", "--no-verify"]
    arguments += ["--norms", "batch", "--steps", "1"] if command == "compare" else []
    found = {}
    for mode in ("as_is", "train", "eval"):
        asked = [] if mode == "as_is" else ["--mode", mode]
        assert main([*arguments, "--json", *asked]) == 0
        out, err = capsys.readouterr()
        advice = json.loads(out)
        advice = advice["norms"][0]["advice"] if command == "compare" else advice
        found[mode] = advice["limit"]
        assert advice["mode"] == mode
        notes = [line for line in err.splitlines() if "in eval mode" in line]
        assert len(notes) == (mode == "as_is")
        assert all(line.startswith("normscope: note: the model") for line in notes)
        assert all("--mode train" in line for line in notes)
    assert found["as_is"] == found["eval"] < found["train"] / 2


def test_adam_is_said_to_be_an_estimate(capsys):
    assert main(["lr", *SMALL, "--optimizer", "adam", "--no-verify", "--explain"]) == 0
    assert capsys.readouterr().out.startswith(
        "Learning rate for Adam, beta1 0.9, batch size 32, an"
    )


@pytest.mark.parametrize("command", ["lr", "theory"])
def test_tables_keep_to_a_narrow_terminal(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main([command, *SMALL, *(["--no-verify"] if command == "lr" else [])]) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 60


def test_figure_is_drawn(tmp_path, capsys):
    figure = tmp_path / "rates.svg"
    assert main(["lr", *SMALL, "--no-verify", "-o", str(figure)]) == 0
    assert f"Figure: {figure}" in capsys.readouterr().out
    assert figure.read_text(encoding="utf-8").lstrip().startswith("<?xml")


def test_compare_prints_one_row_for_each_norm(tmp_path, capsys):
    figure = tmp_path / "compared.svg"
    options = ["--norms", "none, batch", "--steps", "20", "--no-verify", "-o", str(figure)]
    assert main(["compare", *SMALL, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Predicted limit: none, ")
    assert lines[0].endswith("; that of batch is not known")
    rule = next(place for place, line in enumerate(lines) if line.startswith("---"))
    assert [lines[place].split()[0] for place in (rule - 1, rule + 1, rule + 2)] == [
        "norm",
        "none",
        "batch",
    ]
    assert any(
        line.startswith("λ: largest eigenvalue of the loss's Gauss-Newton") for line in lines
    )
    assert any(
        line.startswith("limit: where training is expected") and "no run has verified it" in line
        for line in lines
    )
    assert "loss: training loss at half the limit, mean of the last 10 steps." in lines
    assert lines[-1] == f"Figure: {figure}"
    assert figure.exists()
    assert main(["compare", *SMALL, *options[:5], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["norm"] for row in found["norms"]] == ["none", "batch"]
    assert len(found["norms"][0]["losses"]) == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lr", "fully_conected", "--data", "digits"], "did you mean 'fully_connected'?"),
        (["lr", f"{EXAMPLE}:biuld", "--data", "digits"], "did you mean 'build'?"),
        (["lr", *SMALL, "--loss", "cross_entrpy"], "did you mean 'cross_entropy'?"),
        (["lr", *SMALL, "--optimizer", "adm"], "did you mean 'adam'?"),
        (
            ["lr", *SMALL, "--optimizer", "adam", "--momentum", "0.9"],
            "--momentum is an option of sgd, and --optimizer is adam; leave it out.",
        ),
        (
            ["compare", *SMALL, "--optimizer", "rmsprop", "--nesterov", "--momentum", "0.9"],
            "--momentum and --nesterov are options of sgd, and --optimizer is rmsprop; leave "
            "them out.",
        ),
        (["lr", *SMALL, "--momentum", "1.5"], "momentum must be from 0 up to 1"),
        (["lr", *SMALL, "--nesterov"], "needs a momentum"),
        (["lr", *SMALL[:-1], "5000"], "1438 samples, too few for a batch of 5000"),
        (["lr", *SMALL, "--loss", "mse"], "did you mean 'squared_error'?"),
        (["lr", *SMALL, "--out", "figure.xyz"], "Choices: .pdf, .png, .svg."),
        (["lr", *SMALL, "--out", "figure.svgg"], "did you mean '.svg'?"),
        (["lr", *SMALL, "--mode", "as-is"], "did you mean 'as_is'?"),
        (["lr", *SMALL, "--effort", "thorogh"], "did you mean 'thorough'?"),
        (["lr", *SMALL, "--objective", "half-limit"], "did you mean 'half_limit'?"),
        (
            ["lr", *SMALL, "--objective", "fastest", "--no-verify"],
            'objective="fastest" compares short runs',
        ),
        (["compare", *SMALL, "--mode", "tain"], "did you mean 'train'?"),
        (["lr", "fully_connected"], "Missing option"),
        (["compare", *SMALL, "--norms", "bach"], "did you mean 'batch'?"),
        (["compare", *SMALL, "--norms", ","], "must be a list"),
    ],
)
def test_errors_are_one_line_and_exit_2(arguments, message, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_interruption_exits_130_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    home = importlib.import_module("normscope.learning_rate.advisor")
    monkeypatch.setattr(home, "bracket_limit", interrupted)
    assert main(["lr", *SMALL, "--out", str(tmp_path / "rates.svg")]) == 130
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["lr", "compare"])
def test_help_has_an_example(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"Example: normscope {command}" in capsys.readouterr().out


PARTLY_FROZEN = """
import torch
def whole(): return torch.nn.Sequential(
    torch.nn.Linear(200, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
def frozen():
    model = whole()
    model[0].requires_grad_(False)
    return model
def samples(): return torch.randn(40, 200), torch.randint(3, (40,))
"""


@pytest.mark.parametrize(
    ("arguments", "whose"),
    [
        (["lr", "--no-verify"], ""),
        (["compare", "--no-verify", "--steps", "2", "--norms", "batch"], " of the model as given"),
        (["curvature"], ""),
    ],
)
@pytest.mark.parametrize("model", ["whole", "frozen"])
def test_frozen_parameters_are_not_said_to_be_among_those(
    model, arguments, whose, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "frozen_net.py").write_text(PARTLY_FROZEN, encoding="utf-8")
    command, *options = arguments
    place = [f"frozen_net.py:{model}", "--data", "frozen_net.py:samples"]
    assert main([command, *place, "--batch-size", "20", *options]) == 0
    said = " ".join(capsys.readouterr().out.split())
    frozen = f", the 28 of 1,033 parameters{whose} that are trained"
    assert (frozen in said) is (model == "frozen")
    assert (", all parameters" in said) is (model == "whole")


TOKENS = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.LayerNorm(4))
        self.head = torch.nn.Linear(4, 3)
    def forward(self, x): return self.head(self.body(x)[:, 0])
def samples(): return torch.randn(40, 6, 5), torch.randint(3, (40,))
"""


def test_compare_refuses_a_norm_that_does_not_fit_and_says_how_to_go_on(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("token_net.py").write_text(TOKENS, encoding="utf-8")
    asked = ["compare", "token_net.py:Net", "--data", "token_net.py:samples", "--batch-size", "40"]
    assert main([*asked, "--no-verify", "--norms", "none,instance,layer"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "the norm instance does not fit the model: instance normalization averages each" in err
    assert err.endswith(", or leave it out: --norms none,layer.\n")


def test_compare_chooses_norms_for_tokens(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("token_net.py").write_text(TOKENS, encoding="utf-8")
    asked = ["compare", "token_net.py:Net", "--data", "token_net.py:samples", "--batch-size", "40"]
    assert main([*asked, "--no-verify", "--steps", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["norms"]
    assert [row["norm"] for row in rows] == ["none", "layer", "rms", "dyt"]


def test_clipping_and_accumulation_reach_the_runs(capsys):
    asked = ["lr", *SMALL, "--norm", "none", "--clip-norm", "0.5", "--accumulate", "2"]
    assert main([*asked, "--effort", "quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["batch_size"] == 64
    assert "clipping" in found["predicted_reason"]
    clipped, accumulated, short = found["notes"]
    assert "norm 0.5" in clipped
    assert "2 batches" in accumulated
    assert "Not verified over 100 steps" in short
    assert main([*asked, "--effort", "quick"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(note in printed for note in found["notes"])
    assert main(["lr", *SMALL, "--clip-norm", "0"]) == 2
    assert "clip_norm must be a positive number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "decay"),
    [([], 0.01), (["--weight-decay", "0"], 0.0), (["--weight-decay", "0.1"], 0.1)],
)
def test_weight_decay_is_that_of_the_optimizer_named(capsys, given, decay):
    arguments = ["--optimizer", "adamw", "--effort", "quick", "--json", *given]
    assert main(["lr", *SMALL, *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["weight_decay"] == decay
