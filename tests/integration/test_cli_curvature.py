"""``normscope curvature`` from its arguments to its exit code."""

import importlib
import json
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from normscope.cli.main import main
from normscope.curvature import KINDS, dense
from normscope.data import load
from normscope.models import build

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_model.py"
SMALL = ["fully_connected", "--data", "digits", "--option", "width=6", "--batch-size", "32"]


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


FEW = """
from normscope.data import load
def few(): return tuple(each[:32] for each in load("digits").train)
def batches():
    inputs, labels = load("digits").train
    labels[207] = 12
    return list(zip(inputs.split(100), labels.split(100)))[:3]
"""


@pytest.fixture
def few(tmp_path):
    path = tmp_path / "few_digits.py"
    path.write_text(FEW, encoding="utf-8")
    return path


def test_json_holds_the_eigenvalues_of_the_dense_matrix(capsys, few):
    given = ["fully_connected", "--data", f"{few}:few", "--option", "width=6"]
    assert main(["curvature", *given, "--kind", "hessian", "-k", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model = build("fully_connected", input_shape=(1, 8, 8), width=6)
    batch = tuple(each[:32] for each in load("digits").train)
    matrix = dense(model, "cross_entropy", batch, kind="hessian")
    exact = torch.linalg.eigvalsh(matrix.double()).flip(0)
    assert found["values"] == pytest.approx(exact[:2].tolist(), rel=1e-3)
    assert (found["model"], found["kind"], found["mode"]) == ("fully_connected", "hessian", "train")
    assert found["batch_size"] == 32
    assert found["converged"] is True
    assert found["spectrum"] is None


def test_mode_and_kind_reach_the_matrix(capsys):
    values = set()
    for options in (
        ["--mode", "train"],
        ["--mode", "frozen"],
        ["--mode", "eval"],
        ["--kind", "fisher"],
    ):
        assert main(["curvature", *SMALL, *options, "--json"]) == 0
        values.add(round(json.loads(capsys.readouterr().out)["values"][0], 4))
    assert len(values) == 4


KIND_FILE = """
import torch
from normscope.curvature import KINDS, GaussNewtonProduct
from normscope.curvature.output_hessian import ScaledIdentity

@KINDS.register
def test_user_kind(at):
    \"\"\"Twice the sum of the outer products.\"\"\"
    return GaussNewtonProduct(at.jacobian(), ScaledIdentity(2.0))

def build():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

def samples():
    raise AssertionError("data is loaded before the options are checked")
"""


@pytest.fixture
def file_with_a_kind(tmp_path, monkeypatch):
    """A user's file that registers a kind, which is forgotten after the test."""
    assert list(KINDS)
    monkeypatch.setattr(KINDS, "_items", dict(KINDS._items))
    file = tmp_path / "my_kind.py"
    file.write_text(KIND_FILE, encoding="utf-8")
    return file


def test_kind_of_a_users_file(file_with_a_kind, capsys):
    model = [f"{file_with_a_kind}:build", "--data", "digits", "--batch-size", "32"]
    assert main(["curvature", *model, "--kind", "test_user_kind"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("test user kind matrix, largest")
    assert "Measured: the test user kind matrix of cross_entropy;" in out
    values = []
    for kind in ("fisher", "test_user_kind"):
        assert main(["curvature", *model, "--kind", kind, "--json"]) == 0
        values.append(json.loads(capsys.readouterr().out)["values"][0])
    assert values[1] == pytest.approx(2 * 32 * values[0], rel=1e-3)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--kind", "gauss_newton"], "did you mean 'ggn'?"),
        (["--kind", "test_user_kin"], "did you mean 'test_user_kind'?"),
        (["--mode", "trian"], "did you mean 'train'?"),
        (["--which", "largst"], "did you mean 'largest'?"),
    ],
)
def test_options_are_checked_before_data_is_loaded(option, message, file_with_a_kind, capsys):
    model = [f"{file_with_a_kind}:build", "--data", f"{file_with_a_kind}:samples"]
    assert main(["curvature", *model, *option]) == 2
    assert message in capsys.readouterr().err


def test_own_model_and_data_from_a_file(capsys):
    arguments = [f"{EXAMPLE}:build", "--data", f"{EXAMPLE}:samples", "--batch-size", "16"]
    assert main(["curvature", *arguments, "--batches", "2", "--kind", "ggn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Gauss-Newton matrix, largest, mode train, batch size 16"
    assert lines[5].startswith("converged to 0.001")
    assert float(lines[3].split()[0]) > 0
    assert lines[7].startswith("Measured: the Gauss-Newton matrix of cross_entropy;")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kind", "fisher"], "and not of cross_entropy (--kind ggn or hessian is of that loss)"),
        ([], "Measured: the Gauss-Newton matrix of cross_entropy; fully_connected on"),
        (
            ["--kind", "fisher", "--loss", "squared_error"],
            "curvature of half the squared error; fully_connected on",
        ),
        (
            ["--kind", "hessian", "--mode", "eval"],
            "Measured: the Hessian of cross_entropy; fully_conn",
        ),
        (["--batches", "2"], "on digits, batches of 32, mode train (the batch's statistics, diff"),
        (["--mode", "eval"], "on digits, one batch of 32, mode eval (running statistics), all"),
    ],
)
def test_numbers_say_what_they_are_of(options, said, capsys):
    assert main(["curvature", *SMALL, *options]) == 0
    assert said in " ".join(capsys.readouterr().out.split())


def test_bad_label_in_a_late_batch_is_told_before_the_search(monkeypatch, capsys, few):
    search = importlib.import_module("normscope.curvature")
    monkeypatch.setattr(search, "top_eigenvalue", lambda *given, **named: pytest.fail("too late"))
    model = [f"{EXAMPLE}:build", "--data", f"{few}:batches", "--batches", "3"]
    assert main(["curvature", *model]) == 2
    assert "expected labels from 0 to 9" in capsys.readouterr().err


def test_spectrum_is_summed_up_and_drawn(tmp_path, capsys):
    figure = tmp_path / "new folder" / "spectrum.svg"
    options = ["--spectrum", "--probes", "2", "--lanczos-steps", "6", "--out", str(figure)]
    assert main(["curvature", *SMALL, *options]) == 0
    out = capsys.readouterr().out
    assert "spectrum of 580 eigenvalues: trace" in out
    assert f"Figure: {figure}" in out
    assert figure.read_text(encoding="utf-8").lstrip().startswith("<?xml")
    assert [path.name for path in figure.parent.iterdir()] == ["spectrum.svg"]


def test_spectrum_in_json_is_whole(capsys):
    options = ["--spectrum", "--probes", "2", "--lanczos-steps", "6", "--json"]
    assert main(["curvature", *SMALL, *options]) == 0
    found = json.loads(capsys.readouterr().out)["spectrum"]
    assert len(found["density"]) == len(found["eigenvalue"]) == len(found["density_error"])
    assert len(found["nodes"]) == 2
    assert found["parameters"] == 580
    assert all(sum(weights) == pytest.approx(1.0) for weights in found["weights"])


def test_eigenvalues_are_drawn_without_a_spectrum(tmp_path, capsys):
    figure = tmp_path / "eigenvalues.png"
    assert main(["curvature", *SMALL, "-k", "3", "-o", str(figure), "--json"]) == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert json.loads(capsys.readouterr().out)["figure"] == str(figure)


def test_exit_code_is_1_without_convergence(capsys):
    options = ["--kind", "hessian", "--tol", "1e-9", "--max-products", "2"]
    assert main(["curvature", *SMALL, *options]) == 1
    assert "NOT CONVERGED" in capsys.readouterr().out
    assert main(["curvature", *SMALL, *options, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["converged"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fully_conected", "--data", "digits"], "did you mean 'fully_connected'?"),
        (["fully_connected", "--data", "digit"], "did you mean 'digits'?"),
        ([f"{EXAMPLE}:biuld", "--data", "digits"], "did you mean 'build'?"),
        ([*SMALL, "--kind", "hesian"], "did you mean 'hessian'?"),
        ([*SMALL, "--mode", "tran"], "did you mean 'train'?"),
        ([*SMALL, "--which", "larges"], "did you mean 'largest'?"),
        ([*SMALL, "--loss", "cross_entrpy"], "did you mean 'cross_entropy'?"),
        ([*SMALL, "--out", "figure.svgg"], "did you mean '.svg'?"),
        ([*SMALL, "--batches", "1000"], "1438 samples"),
        ([*SMALL, "--tol", "2"], "tol must be between 0 and 1"),
        (["fully_connected"], "Missing option"),
    ],
)
def test_errors_are_one_line_and_exit_2(arguments, message, capsys):
    assert main(["curvature", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_interruption_exits_130_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    # By its module: the package's own attribute of that name is the function.
    home = importlib.import_module("normscope.curvature.spectrum")
    monkeypatch.setattr(home, "spectrum", interrupted)
    options = ["--spectrum", "--out", str(tmp_path / "spectrum.svg")]
    assert main(["curvature", *SMALL, *options]) == 130
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_progress_tells_estimate_and_residual(monkeypatch, capsys):
    told = []

    @contextmanager
    def log(label):
        yield lambda event: told.append(event.detail)

    monkeypatch.setattr("normscope.cli.curvature.show_progress", log)
    assert main(["curvature", *SMALL, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)["values"][0]
    assert all(text.startswith("eigenvalue ") and " (residual " in text for text in told)
    assert float(told[-1].split()[1]) == pytest.approx(value, rel=1e-4)


def test_help_has_an_example(capsys):
    assert main(["curvature", "--help"]) == 0
    assert "Example: normscope curvature examples/my_model.py:build" in capsys.readouterr().out


SPOILT = """
import torch
def build(): return torch.nn.Linear(5, 3)
def nan():
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    x[17] = float("nan")
    return x, torch.zeros(40, dtype=torch.long)
def label():
    x, y = nan()
    y[17] = 7
    return x.nan_to_num(), y
def batches():
    x, y = label()
    return [(x[:10], y[:10]), (x[10:], y[10:])]
"""


@pytest.mark.parametrize(
    ("data", "asked", "told"),
    [
        ("nan", [], "number 17 of the data"),
        ("label", [], "number 17 of the data"),
        ("label", ["--batch-size", "20", "--batches", "2"], "number 17 of the data"),
        ("batches", ["--batches", "2"], "number 7 of batch 1 of the data"),
    ],
)
def test_bad_sample_is_told_by_its_number_in_the_users_data(
    data, asked, told, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "spoilt_net.py").write_text(SPOILT, encoding="utf-8")
    arguments = ["spoilt_net.py:build", "--data", f"spoilt_net.py:{data}", *asked]
    assert main(["curvature", *arguments]) == 2
    assert f"The first such sample is {told}, counted from 0." in capsys.readouterr().err


OTHER_FORMS = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7)
    def forward(self, tokens, labels=None):
        logits = self.head(torch.tanh(self.embed(tokens)))
        return {"loss": cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}
class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 2)
    def forward(self, x, edges):
        x = torch.tanh(self.first(x))
        return self.second(x.index_add(0, edges[1], x[edges[0]]))
def tokens():
    drawn = torch.randint(7, (40, 3))
    return {"tokens": drawn, "labels": drawn}
def graph(): return torch.randn(9, 4), torch.randint(9, (2, 20)), torch.randint(2, (9,))
"""


def test_dictionaries_and_graphs_from_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forms.py").write_text(OTHER_FORMS, encoding="utf-8")
    language = ["forms.py:Language", "--data", "forms.py:tokens", "--loss", "model"]
    graph = ["forms.py:Graph", "--data", "forms.py:graph"]
    for asked, samples in ([*language, "--batch-size", "8"], 8), (graph, 1):
        assert main(["curvature", *asked, "--kind", "ggn", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["converged"]
        assert found["batch_size"] == samples
        assert main(["lr", *asked, "--no-verify", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["recommended"] > 0
    for command in ("curvature", "lr"):
        assert main([command, *graph, "--batch-size", "3"]) == 2
        error = capsys.readouterr().err
        assert "one row per sample" in error
        assert error.count("\n") == 1
