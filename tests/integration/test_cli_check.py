"""``normscope check`` from its arguments to its exit code."""

import json
import re
import sys
from pathlib import Path

import pytest

from normscope.cli import check_model
from normscope.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_model.py"
DIGITS = ["fully_connected", "--data", "digits"]
PLACES = [f"{EXAMPLE}:build", "--data", f"{EXAMPLE}:samples"]


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(scope="module")
def answers():
    """What the command says of each form, once."""
    return {}


def answered(capsys, answers, form):
    if form not in answers:
        code = main(["check", "--cases", "20", "--form", form, "--json"])
        answers[form] = code, json.loads(capsys.readouterr().out)
    return answers[form]


def test_exact_forms_hold_everywhere(capsys, answers):
    code, found = answered(capsys, answers, "exact")
    assert code == 0
    assert found["refuted"] == 0
    subjects = {row["subject"].split()[0] for row in found["verdicts"]}
    assert subjects == {
        "random",
        "fully_connected",
        "deep_linear",
        "conv_net",
        "vgg",
        "preact_resnet18",
    }
    random = [row for row in found["verdicts"] if row["subject"] == "random cases"]
    assert {row["name"] for row in random} == {
        "fact_c1",
        "fact_c2",
        "lemma_4_5",
        "theorem_4_1",
        "theorem_4_2",
        "theorem_4_4",
        "theorem_c1",
    }
    assert all(row["cases"] == 20 for row in random)


def test_printed_forms_that_fail_are_counted_and_exit_with_one(capsys, answers):
    code, found = answered(capsys, answers, "printed")
    assert code == 1
    random = {
        (row["name"], row["variant"]): row
        for row in found["verdicts"]
        if row["subject"] == "random cases"
    }
    assert random["theorem_4_1", ""]["failures"] == 20
    assert random["theorem_4_2", ""]["failures"] == 0
    assert random["fact_c1", ""]["failures"] == 0
    assert random["theorem_c1", ""]["failures"] > 0


def test_table_for_people(capsys):
    assert main(["check", *PLACES, "--batch-size", "16", "--form", "printed"]) == 1
    out = capsys.readouterr().out
    assert "theorem_4_1" in out
    assert "false" in out
    assert "eps = 0" in out
    assert max(len(line) for line in out.splitlines()) <= 120


def test_layer_of_a_users_model_unit_by_unit(capsys):
    assert main(["check", *PLACES, "--batch-size", "16", "--json"]) == 0
    layers = {row["layer"] for row in json.loads(capsys.readouterr().out)["verdicts"]}
    layer = sorted(layers)[0]
    assert main(["check", *PLACES, "--layer", layer, "--batch-size", "16", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["verdicts"]
    assert {row["layer"] for row in rows} == {layer}
    assert None in {row["unit"] for row in rows}
    assert len({row["unit"] for row in rows}) > 2


SMALL = [*DIGITS, "--option", "width=6", "--option", "depth=2"]


@pytest.mark.parametrize(
    ("size", "way"), [("16", ", or take --batch-size 2."), ("8", " by --layer.")]
)
def test_long_check_is_estimated_from_its_first_layer(size, way, capsys, monkeypatch):
    monkeypatch.setattr(check_model, "_LONG", 0.0)
    assert main(["check", *DIGITS, "--option", "width=6", "--batch-size", size]) == 0
    said = capsys.readouterr().err
    assert "at the pace of the first of 3 layers; for less, choose one of the 3 layers" in said
    assert said.rstrip().endswith(way)


def test_short_check_is_not_estimated(capsys):
    assert main(["check", *SMALL, "--batch-size", "8"]) == 0
    assert "this may take" not in capsys.readouterr().err


def test_theorem_c1_is_checked_on_a_part_of_the_usual_batch(capsys):
    """The batch is 256 by default, more than Theorem C.1 makes a matrix of."""
    assert main(["check", *SMALL]) == 0
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if line.startswith("theorem_c1 ")]
    assert row.endswith("holds")
    assert "theorem_c1: checked on the first 16 samples of the batch" in out
    assert out.endswith("All hold.\n")
    assert main(["check", *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unchecked"] == []
    assert set(found["samples_of_theorem_c1"].values()) == {16}
    assert set(found["samples_of_theorem_c1"]) == {row["layer"] for row in found["verdicts"]}


def test_theorem_c1_has_the_whole_batch_where_that_is_small_enough(capsys):
    assert main(["check", *SMALL, "--batch-size", "24", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples_of_theorem_c1"] == {}
    assert "theorem_c1" in {row["name"] for row in found["verdicts"]}


CONVOLUTION = """
import torch
def build(): return torch.nn.Sequential(
    torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.LazyLinear(3))
def small(): return torch.randn(40, 1, 8, 8), torch.randint(3, (40,))
def large(): return torch.randn(40, 1, 9, 8), torch.randint(3, (40,))
"""


@pytest.mark.parametrize(("data", "checked"), [("small", True), ("large", False)])
def test_two_samples_of_images_are_checked_up_to_the_largest_matrix(
    data, checked, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    lazy = "torch.nn.LazyLinear(3)"
    source = CONVOLUTION.replace(lazy, f"torch.nn.Linear({128 if checked else 144}, 3)")
    (tmp_path / "part_net.py").write_text(source, encoding="utf-8")
    assert main(["check", "part_net.py:build", "--data", f"part_net.py:{data}"]) == 0
    out = capsys.readouterr().out
    assert ("theorem_c1: checked on the first 2 samples" in out) is checked
    assert ("not checked: a unit has 2880 values in a batch of 40" in out) is not checked
    assert ("choose by --layer" in " ".join(out.split())) is not checked


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--form", "exat"], "did you mean 'exact'"),
        (["--layer", "1"], "name it first"),
        (["--loss", "nonsense"], "--loss belongs to a model"),
        ([*DIGITS, "--cases", "3"], "checked without MODEL"),
        ([*DIGITS, "--loss", "nonsense"], "unknown loss 'nonsense'"),
        (["fully_connected"], "give --data"),
        (["--model", "fully_connected"], "give --data"),
        ([*DIGITS, "--model", "vgg"], "given twice"),
        (["--model", "fully_conected", "--data", "digits"], "did you mean 'fully_connected'"),
        (
            [*DIGITS, "--layer", "features.11"],
            "did you mean 'features.1'",
        ),
        (
            [*DIGITS, "--norm", "layer", "--layer", "features.1"],
            "is not a batch normalization",
        ),
        ([*DIGITS, "--norm", "none"], "no batch normalization"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(capsys, arguments, said):
    assert main(["check", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_help_has_an_example(capsys):
    assert main(["check", "--help"]) == 0
    assert "Example: normscope check" in capsys.readouterr().out


OTHERS = """
import torch
def build(): return torch.nn.Sequential(
    torch.nn.Linear(5, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 3))
def plain(): return torch.nn.Linear(5, 3)
def samples(): return torch.randn(40, 5), torch.randint(3, (40,))
class Tokens(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.body, self.head = torch.nn.Sequential(*layers), torch.nn.Linear(4, 3)
    def forward(self, x): return self.head(self.body(x)[:, 0])
def tokens(): return Tokens(torch.nn.Linear(5, 4), torch.nn.LayerNorm(4))
class Plain(Tokens):
    def forward(self, x): return self.head(self.body(x)[:, 0] * 2)
def bare(): return Plain(torch.nn.Linear(5, 4))
def many(): return torch.randn(40, 6, 5), torch.randint(3, (40,))
"""


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (
            ["others_net.py:build"],
            "but LayerNorm, which .* return normscope.layers.convert(",
        ),
        (["others_net.py:plain"], "to check; to check it with such layers, add some. As it is, "),
        (["fully_connected", "--norm", "layer"], "such layers, give --norm batch. As it is, "),
    ],
)
def test_model_without_batch_normalization_is_told_what_can_be_done(
    model, advice, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "others_net.py").write_text(OTHERS, encoding="utf-8")
    data = "digits" if len(model) > 1 else "others_net.py:samples"
    assert main(["check", *model, "--data", data]) == 2
    told = capsys.readouterr().err
    assert f"{model[0]} has no batch normalization to check" in told
    assert re.search(advice.replace("(", r"\("), told)
    assert "normscope lr finds" in told
    # a lone layer has no place for a norm layer that convert could find
    compared = "normscope compare --norms none,batch,layer" in told
    assert compared is (model[0] != "others_net.py:plain")


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (
            "tokens",
            'let it return normscope.layers.convert(model, to="batch"). As it is, normscope lr '
            "finds its learning rates, and normscope compare --norms none,batch,layer those of "
            "other normalizations.\n",
        ),
        ("bare", "layers, add some. As it is, normscope lr finds its learning rates.\n"),
    ],
)
def test_conversion_is_advised_where_it_works(model, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token_net.py").write_text(OTHERS, encoding="utf-8")
    assert main(["check", f"token_net.py:{model}", "--data", "token_net.py:many"]) == 2
    assert capsys.readouterr().err.endswith(told)


DICTIONARY = """
import torch
import normscope as ns
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)
    def forward(self, x): return {"scores": self.head(self.norm(x))}
def samples(): return torch.randn(40, 5), torch.randint(3, (40,))
def apply(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0])["scores"], batch[1])
loss = ns.whole_loss(apply)
"""


def test_output_that_is_a_dictionary_needs_a_whole_loss(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dict_net.py").write_text(DICTIONARY, encoding="utf-8")
    asked = ["check", "dict_net.py:Net", "--data", "dict_net.py:samples", "--batch-size", "16"]
    assert main(asked) == 2
    said = (
        "normscope: the model's output must be a tensor for this loss, got a dict of scores; use "
    )
    assert capsys.readouterr().err.startswith(said)
    assert main([*asked, "--loss", "dict_net.py:loss"]) == 0
    assert "All hold." in capsys.readouterr().out


GRAPH = """
import torch
import normscope as ns
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = (
            torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    def forward(self, x, edges):
        x = self.norm(self.first(x))
        return self.head(torch.zeros_like(x).index_add(0, edges[1], torch.tanh(x)[edges[0]]))
def graph():
    nodes = {"x": torch.randn(150, 5), "y": torch.randint(3, (150,))}
    return [{**nodes, "edges": torch.randint(150, (2, 400))}]
def apply(model, batch):
    return torch.nn.functional.cross_entropy(model(batch["x"], batch["edges"]), batch["y"])
loss = ns.whole_loss(apply)
"""


def test_graph_whose_nodes_are_the_rows_is_not_cut(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph_net.py").write_text(GRAPH, encoding="utf-8")
    asked = ["graph_net.py:Net", "--data", "graph_net.py:graph", "--loss", "graph_net.py:loss"]
    assert main(["check", *asked]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "a unit has 150 values, above dense_limit=128: the rows of the batch are not" in out
    assert "All that were checked hold." in out
    (tmp_path / "little_graph.py").write_text(GRAPH.replace("150", "40"), encoding="utf-8")
    assert main(["check", *(each.replace("graph_net", "little_graph") for each in asked)]) == 0
    assert "All hold." in capsys.readouterr().out
