"""Models of transformers and torch_geometric without adapters, against dense matrices."""

import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch
from tests.unit.structured import at, dense_matrices, drawn, labels
from torch import nn
from torch.nn import functional

import normscope as ns
from normscope.cli.main import main
from normscope.errors import ArgumentTypeError, ShapeError

ROOT = Path(__file__).parents[2]
KINDS = ("fisher", "ggn", "hessian")

pytestmark = [
    pytest.mark.extras,
    pytest.mark.filterwarnings("ignore"),  # the packages' own
]


def error(found, expected):
    assert torch.allclose(found, found.T, atol=1e-9 * float(expected.abs().max()))
    return float((found - expected).abs().max() / expected.abs().max())


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 7, "n_positions": 5, "n_embd": 4, "n_layer": 1, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **ends, attn_implementation="eager")).double()


def next_token_loss(logits, tokens):
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


NEXT_TOKEN = ns.whole_loss(
    outputs=lambda model, batch: model(input_ids=batch["input_ids"]),
    loss=lambda outputs, batch: next_token_loss(outputs.logits, batch["labels"]),
)


def test_gpt2_has_the_matrices_of_a_dense_reference():
    model, tokens = gpt2().eval(), labels(7, 3, 5)
    batch = {"input_ids": tokens, "labels": tokens}
    expected = dense_matrices(
        model,
        lambda v: [at(model, v, input_ids=tokens, use_cache=False).logits],
        lambda out: next_token_loss(out[0], tokens),
        3,
    )
    for kind in KINDS:
        shown = ns.curvature.dense(model, NEXT_TOKEN, batch, kind=kind, mode="eval")
        assert error(shown, expected[kind]) < 1e-8
        # the loss of transformers rounds its logits to float32
        of_model = ns.curvature.dense(model, "model", batch, kind=kind, mode="eval")
        bound = 1e-8 if kind == "fisher" else 1e-6
        assert float((of_model - expected[kind]).abs().max() / expected[kind].abs().max()) < bound


def test_bert_has_the_matrices_of_a_dense_reference_and_an_accuracy():
    from transformers import BatchEncoding, BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"vocab_size": 6, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        **sizes, intermediate_size=4, max_position_embeddings=4, num_labels=3, type_vocab_size=1
    )
    config._attn_implementation = "eager"
    model = BertForSequenceClassification(config).double().eval()
    tokens, classes = labels(6, 4, 3), labels(3, 4)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]])
    inputs = {"input_ids": tokens, "attention_mask": mask}
    batch = BatchEncoding({**inputs, "labels": classes})
    expected = dense_matrices(
        model,
        lambda v: [at(model, v, **inputs).logits],
        lambda out: functional.cross_entropy(out[0], classes),
        4,
    )
    for kind in KINDS:
        found = ns.curvature.dense(model, "model", batch, kind=kind, mode="eval")
        assert error(found, expected[kind]) < 1e-8
    scores = ns.training.evaluate(model, "model", batch, batch_size=2)
    by_hand = model(**inputs).logits
    assert scores.loss == pytest.approx(functional.cross_entropy(by_hand, classes).item())
    assert scores.accuracy == pytest.approx((by_hand.argmax(1) == classes).double().mean().item())


def test_gpt2_with_dropout_is_advised_watched_and_trained_without_an_adapter():
    tokens = labels(7, 12, 5)
    batch = {"input_ids": tokens, "labels": tokens}
    model = gpt2().float()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    advice = ns.max_learning_rate(model, "model", batch, batch_size=4)
    assert 0 < advice.recommended < advice.limit
    assert advice.curvature.kind == "ggn"
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())

    def train(watched):
        model = gpt2().float()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scope = ns.Scope(model, None, optimizer, every=1) if watched else None
        torch.manual_seed(3)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            if scope is not None:
                scope.step(batch)
            optimizer.step()
        return model.state_dict()

    alone, watched = train(False), train(True)
    assert all(torch.equal(alone[name], watched[name]) for name in alone)


def test_command_of_the_page_runs(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "how_to" / "other_models.md").read_text(encoding="utf-8")
    commands = [line for line in page.splitlines() if line.startswith("normscope ")]
    assert len(commands) == 2
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
    assert "recommended" in capsys.readouterr().out


def test_example_of_gpt2_is_made_of_sums():
    example = runpy.run_path(str(ROOT / "examples" / "gpt2.py"))
    first = example["batches"]()[0]["input_ids"]
    text = "".join(example["SYMBOLS"][token] for token in first.flatten().tolist())
    for each in text.split(";")[:-1]:
        terms, total = each.split("=")
        assert sum(map(int, terms.split("+"))) == int(total)


class Convolutions(nn.Module):
    def __init__(self, pooled):
        from torch_geometric.nn import GCNConv

        super().__init__()
        self.first, self.second = GCNConv(4, 3), GCNConv(3, 2)
        self.pooled = pooled

    def forward(self, data):
        from torch_geometric.nn import global_mean_pool

        x = torch.tanh(self.first(data.x, data.edge_index))
        x = self.second(x, data.edge_index)
        return global_mean_pool(x, data.batch) if self.pooled else x


def graphs():
    from torch_geometric.data import Data

    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    return [
        Data(x=drawn(4, 4, seed=seed), edge_index=edges, y=labels(2, 1, seed=seed))
        for seed in range(3)
    ]


@pytest.mark.parametrize("pooled", [False, True], ids=["nodes", "graphs"])
def test_torch_geometric_data_has_the_matrices_of_a_dense_reference(pooled):
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Batch, Data

    torch.manual_seed(0)
    model = Convolutions(pooled).double()
    if pooled:
        data = Batch.from_data_list(graphs())
    else:
        data = Data(x=drawn(4, 4), edge_index=graphs()[0].edge_index, y=labels(2, 4))
    before = {key: value.clone() for key, value in data.to_dict().items() if torch.is_tensor(value)}
    expected = dense_matrices(
        model,
        lambda v: [at(model, v, data)],
        lambda out: functional.cross_entropy(out[0], data.y),
        len(data.y),
    )
    for kind in KINDS:
        found = ns.curvature.dense(model, "cross_entropy", data, kind=kind)
        assert error(found, expected[kind]) < 1e-8
    model.float()
    advice = ns.max_learning_rate(model, "cross_entropy", [data, data])
    assert advice.limit > 0
    assert 0 <= ns.training.evaluate(model, "cross_entropy", data).accuracy <= 1
    assert all(torch.equal(data[key], value) for key, value in before.items())
    with pytest.raises(ShapeError, match="one row per sample"):
        ns.max_learning_rate(model, "cross_entropy", data, batch_size=1)


class ByName(Convolutions):
    def forward(self, x, edge_index, batch=None, edge_weight=None):
        from torch_geometric.nn import global_mean_pool

        x = torch.tanh(self.first(x, edge_index, edge_weight))
        x = self.second(x, edge_index, edge_weight)
        return global_mean_pool(x, batch) if self.pooled else x


def test_model_of_several_arguments_is_given_the_graph_s_attributes():
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Batch

    torch.manual_seed(0)
    model, named = Convolutions(pooled=True).double(), ByName(pooled=True).double()
    named.load_state_dict(model.state_dict())
    data = Batch.from_data_list(graphs())
    for kind in KINDS:
        found, expected = (
            ns.curvature.dense(each, "cross_entropy", data, kind=kind) for each in (named, model)
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    named.forward = lambda nodes, edges: named.first(nodes, edges)
    with pytest.raises(ArgumentTypeError, match=r"forward takes \(nodes, edges\)"):
        ns.curvature.dense(named, "cross_entropy", data)


def test_loader_of_torch_geometric_is_read_batch_by_batch():
    pytest.importorskip("torch_geometric")
    from torch_geometric.loader import DataLoader

    torch.manual_seed(0)
    model = Convolutions(pooled=True)
    loader = DataLoader(graphs(), batch_size=2)
    operator = ns.curvature.operator(model, "cross_entropy", loader, kind="ggn")
    assert operator.batch_sizes == (2, 1)
    run = ns.fit(ns.Problem(model, "cross_entropy", loader), ns.sgd(0.1), steps=4)
    assert run.steps == 4
