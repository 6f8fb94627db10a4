"""Forms of batches: several inputs, mappings, graphs; their curvature, training and refusals."""

from collections import UserDict
from dataclasses import dataclass

import pytest
import torch
from tests.unit.structured import (
    EDGES,
    Graph,
    GraphOfData,
    LossInside,
    StandIn,
    TwoInputs,
    at,
    dense_matrices,
    drawn,
    labels,
    make,
)
from torch import nn
from torch.nn import functional

import normscope as ns
from normscope.errors import (
    ArgumentTypeError,
    InputError,
    MisfitError,
    NormscopeError,
    NormscopeWarning,
    ShapeError,
)
from normscope.problem import batch_count, copy_batch, has_samples, move_batch, rows, sample_count
from normscope.problem.batch import is_graph, join_batches, tensors_of

LEFT, RIGHT, LABELS = drawn(5, 4), drawn(5, 2), labels(3, 5)
NODES, NODE_LABELS = drawn(5, 4), labels(2, 5)
KINDS = ("fisher", "ggn", "hessian")


@dataclass(frozen=True)
class Sides:
    left: torch.Tensor
    right: torch.Tensor
    labels: torch.Tensor
    note: str = "text"


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor
    labels: torch.Tensor


TWO_INPUTS = {
    "tuple of inputs": ((LEFT, RIGHT), LABELS),
    "three": (LEFT, RIGHT, LABELS),
    "mapping of inputs": ({"left": LEFT, "right": RIGHT}, LABELS),
    "mapping": {"left": LEFT, "right": RIGHT, "labels": LABELS},
    "user dict": UserDict(left=LEFT, right=RIGHT, labels=LABELS),
    "dataclass": Pair(LEFT, RIGHT, LABELS),
}


def graph(**more):
    return StandIn(x=NODES, edge_index=EDGES, y=NODE_LABELS, note="text", **more)


def matrices_of(model, target, *inputs):
    def loss(outputs):
        return functional.cross_entropy(outputs[0], target)

    return dense_matrices(model, lambda v: [at(model, v, *inputs)], loss, len(target))


@pytest.mark.parametrize("batch", TWO_INPUTS.values(), ids=TWO_INPUTS)
def test_every_form_of_two_inputs_has_the_same_curvature(batch):
    model = make(TwoInputs)
    expected = matrices_of(model, LABELS, LEFT, RIGHT)
    for kind in KINDS:
        for loss in ("cross_entropy", nn.CrossEntropyLoss()):
            found = ns.curvature.dense(model, loss, batch, kind=kind)
            assert torch.allclose(found, expected[kind], atol=1e-10), kind


@pytest.mark.parametrize("batch", TWO_INPUTS.values(), ids=TWO_INPUTS)
def test_every_form_of_two_inputs_is_trained_on_in_the_same_way(batch):
    runs = []
    for data in (batch, (LEFT, RIGHT, LABELS)):
        problem = ns.Problem(make(TwoInputs), "cross_entropy", data)
        runs.append(ns.fit(problem, ns.sgd(0.1), steps=4, batch_size=2).losses.tolist())
    assert runs[0] == runs[1]
    scores = [
        ns.training.evaluate(make(TwoInputs), "cross_entropy", data, batch_size=2)
        for data in (batch, (LEFT, RIGHT, LABELS))
    ]
    assert scores[0] == scores[1]
    assert scores[0].accuracy is not None


@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        (Graph, ((NODES, EDGES), NODE_LABELS)),
        (Graph, (NODES, EDGES, NODE_LABELS)),
        (Graph, {"x": NODES, "edges": EDGES, "labels": NODE_LABELS}),
        (GraphOfData, graph()),
    ],
    ids=["pair", "three", "mapping", "data"],
)
class TestGraph:
    """Rows are nodes and edges: nothing is cut, and everything else works."""

    def test_curvature_is_that_of_the_whole_graph(self, kind, batch):
        model = make(kind)
        expected = matrices_of(make(Graph), NODE_LABELS, NODES, EDGES) if kind is Graph else None
        if expected is None:
            same = make(Graph)
            expected = matrices_of(same, NODE_LABELS, NODES, EDGES)
        for each in KINDS:
            found = ns.curvature.dense(model, "cross_entropy", batch, kind=each)
            assert torch.allclose(found, expected[each], atol=1e-10), each
            top = ns.curvature.top_eigenvalue(model, "cross_entropy", [batch], kind=each, tol=1e-6)
            assert top.value == pytest.approx(float(torch.linalg.eigvalsh(expected[each])[-1]))

    def test_learning_rate_and_training_use_whole_batches(self, kind, batch):
        model = make(kind)
        before = [p.clone() for p in model.parameters()]
        advice = ns.max_learning_rate(model, "cross_entropy", [batch, batch])
        assert advice.verified is not None
        assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
        run = ns.fit(ns.Problem(model, "cross_entropy", batch), ns.sgd(0.1), steps=3)
        assert run.losses[-1] < run.losses[0]
        found = ns.training.evaluate(model, "cross_entropy", batch, batch_size=2)
        assert 0 <= found.accuracy <= 1

    def test_what_needs_samples_refuses_in_one_sentence(self, kind, batch):
        model = make(kind)
        problem = ns.Problem(model, "cross_entropy", batch)
        for refused in (
            lambda: ns.max_learning_rate(model, "cross_entropy", batch, batch_size=2),
            lambda: ns.fit(problem, ns.sgd(0.1), steps=1, batch_size=2),
            lambda: ns.curvature.batch_size_effect(model, "cross_entropy", batch),
            lambda: ns.curvature.batch_size_effect(model, "cross_entropy", [batch, batch]),
            lambda: sample_count(batch),
            lambda: rows(batch, torch.tensor([0, 1])),
        ):
            with pytest.raises(ShapeError, match="one row per sample") as caught:
                refused()
            assert "\n" not in str(caught.value)


def test_graph_object_is_moved_and_copied_without_a_change_to_it():
    given = graph()
    before = dict(vars(given))
    moved = move_batch(given, torch.device("cpu"), torch.float32)
    assert (moved.x.dtype, moved.edge_index.dtype, moved.note) == (
        torch.float32,
        torch.int64,
        "text",
    )
    copied = copy_batch(given)
    copied.x.zero_()
    assert given.x.any()
    assert vars(given) == before
    assert is_graph(given)
    assert [tensor.shape for tensor in tensors_of(given)] == [(5, 4), (2, 6), (5,)]


def test_batches_count_by_samples_or_graphs_or_once():
    assert batch_count((LEFT, LABELS)) == 5
    assert batch_count((NODES, EDGES)) == 1
    assert batch_count(graph()) == 1
    assert batch_count(graph(num_graphs=3)) == 3
    assert not has_samples(graph())
    assert not has_samples({"x": LEFT, "scale": torch.tensor(1.0)})


def test_several_graphs_are_averaged_by_their_number():
    model = make(GraphOfData)

    def loss(output, target):
        return functional.cross_entropy(output, target)

    one, other = graph(num_graphs=1), graph(num_graphs=3)
    other.x = drawn(5, 4, seed=7)
    parts = [ns.curvature.dense(model, loss, each, kind="hessian") for each in (one, other)]
    both = ns.curvature.dense(model, loss, [one, other], kind="hessian")
    assert torch.allclose(both, 0.25 * parts[0] + 0.75 * parts[1], atol=1e-12)


def test_fisher_of_a_batch_without_samples_is_refused_unless_rows_agree():
    model = make(Graph)
    summed = ns.whole_loss(
        outputs=lambda model, batch: {"nodes": model(batch[0], batch[1])},
        loss=lambda outputs, batch: outputs["nodes"].square().mean(),
    )
    with pytest.raises(ShapeError, match="mean over samples"):
        ns.curvature.operator(model, summed, (NODES, EDGES, NODE_LABELS), kind="fisher")
    assert ns.curvature.top_eigenvalue(model, summed, (NODES, EDGES), kind="ggn").value > 0


class KnowsItsEdges(nn.Module):
    """A graph network that keeps the edges itself: its batch is a pair, its rows are nodes."""

    def __init__(self, nodes=80):
        super().__init__()
        self.graph = Graph()
        order = torch.arange(nodes)
        self.register_buffer("edges", torch.stack([order, order.roll(1)]))

    def forward(self, x):
        return self.graph(x, self.edges)


def test_model_that_keeps_its_graph_is_not_cut():
    model, x, y = make(KnowsItsEdges), drawn(80, 4), labels(2, 80)
    expected = matrices_of(model, y, x)
    for kind in KINDS:  # the start of a search is on a part of the data
        top = ns.curvature.top_eigenvalue(model, "cross_entropy", (x, y), kind=kind, tol=1e-5)
        assert top.value == pytest.approx(float(torch.linalg.eigvalsh(expected[kind])[-1]))
    advice = ns.max_learning_rate(model, "cross_entropy", (x, y), verify=False)
    assert advice.predicted > 0
    with pytest.raises(MisfitError, match="give it whole, in a list") as caught:
        ns.max_learning_rate(model, "cross_entropy", (x, y), batch_size=20, verify=False)
    assert "\n" not in str(caught.value)


def test_labels_are_given_to_the_model_only_if_it_takes_them():
    tokens = labels(5, 3, 4)
    problem = ns.Problem(make(LossInside), "model", {"tokens": tokens, "labels": tokens})
    assert problem.loss_on(next(problem.batches())) > 0
    two = ns.Problem(make(TwoInputs), "cross_entropy", TWO_INPUTS["mapping"])
    assert torch.equal(two.target_of(two.data), LABELS)

    class Everything(TwoInputs):
        def forward(self, left, right, **others):
            assert set(others) == {"labels"}
            return super().forward(left, right)

    ns.Problem(make(Everything), "cross_entropy", two.data).loss_on(two.data)


def test_mapping_without_labels_is_its_own_target():
    model, batch = make(TwoInputs), {"left": LEFT, "right": RIGHT}
    problem = ns.Problem(
        model, lambda output, target: (output * target["left"][:, :3]).mean(), batch
    )
    assert problem.target_of(batch) == batch
    assert problem.loss_on(batch).dim() == 0


@pytest.mark.parametrize(
    ("kind", "loss", "data", "error", "said"),
    [
        (TwoInputs, "cross_entropy", (LEFT, LABELS), ArgumentTypeError, "1 input"),
        (TwoInputs, "cross_entropy", (LEFT, RIGHT, RIGHT, LABELS), ArgumentTypeError, "3 inputs"),
        (TwoInputs, "cross_entropy", {"left": LEFT, "wrong": RIGHT, "labels": LABELS},
         ArgumentTypeError, r"inputs left, wrong, but its forward takes \(left, right\)"),
        (TwoInputs, "cross_entropy", {"left": LEFT, "right": RIGHT}, ArgumentTypeError, "'labels'"),
        (TwoInputs, "cross_entropy", ((LEFT, RIGHT), (LABELS, LABELS)), ArgumentTypeError, "list"),
        (TwoInputs, "cross_entropy", {"left": LEFT.numpy(), "right": RIGHT, "labels": LABELS},
         ArgumentTypeError, "from_numpy"),
        (TwoInputs, "model", {"left": [1, 2], "right": [3]}, ArgumentTypeError, "holds tensors"),
        (TwoInputs, "model", TWO_INPUTS["mapping"], ArgumentTypeError, "loss='model' needs"),
        (GraphOfData, "cross_entropy", StandIn(note="empty"), ArgumentTypeError, "holds tensors"),
        (GraphOfData, "cross_entropy", graph().apply(lambda x: x[:0] if hasattr(x, "dim") else x),
         InputError, "empty"),
        (LossInside, "model", {"tokens": torch.full((2, 3), 9), "labels": labels(5, 2, 3)},
         MisfitError, "'embed'"),
        (LossInside, "cross_entropy", {"tokens": labels(5, 2, 3), "labels": labels(5, 2, 3)},
         ArgumentTypeError, "got a Output; use loss='model'"),
    ],
)  # fmt: skip
def test_batch_that_does_not_fit_is_refused_in_one_sentence(kind, loss, data, error, said):
    for call in (
        lambda: ns.Problem(make(kind), loss, data).loss_on(data),
        lambda: ns.curvature.top_eigenvalue(make(kind), loss, [data], kind="hessian"),
        lambda: ns.max_learning_rate(make(kind), loss, [data], verify=False),
        lambda: ns.training.evaluate(make(kind), loss, data),
    ):
        with pytest.raises(error, match=said) as caught:
            call()
        assert isinstance(caught.value, NormscopeError)
        assert "\n" not in str(caught.value)


class Normalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.net = nn.BatchNorm1d(4), TwoInputs()

    def forward(self, left, right, labels=None):
        return self.net(self.norm(left), right)


class TakesSides(TwoInputs):
    def forward(self, sides):
        return super().forward(sides.left, sides.right)


def test_dataclass_is_given_whole_to_a_model_that_does_not_take_its_fields():
    batch = Sides(LEFT, RIGHT, LABELS)
    expected = matrices_of(make(TwoInputs), LABELS, LEFT, RIGHT)["hessian"]
    found = ns.curvature.dense(make(TakesSides), "cross_entropy", [batch], kind="hessian")
    assert torch.allclose(found, expected, atol=1e-10)
    by_hand = ns.whole_loss(lambda m, b: functional.cross_entropy(m(b), b.labels))
    found = ns.curvature.dense(make(TakesSides), by_hand, batch, kind="hessian")
    assert torch.allclose(found, expected, atol=1e-10)


def test_dataclass_is_moved_cut_and_joined_without_a_change_to_it():
    batch = Sides(LEFT, RIGHT, LABELS)
    moved = move_batch(batch, torch.device("cpu"), torch.float32)
    assert (moved.left.dtype, moved.labels.dtype) == (torch.float32, torch.int64)
    assert (moved.note, batch.left is LEFT, sample_count(batch)) == ("text", True, 5)
    joined = join_batches([rows(batch, torch.tensor([2, 3])), rows(batch, torch.tensor([0]))])
    assert torch.equal(joined.right, RIGHT[[2, 3, 0]])
    assert isinstance(joined, Sides)


MANY = {"tokens": labels(5, 6, 4), "labels": labels(5, 6, 4)}
MANY["labels"][:2, 1:] = -100
HALVES = [rows(MANY, torch.arange(3)), rows(MANY, torch.arange(3, 6))]


def masked(output, target):
    return functional.cross_entropy(output.logits.flatten(0, 1), target.flatten())


@pytest.mark.parametrize("loss", ["model", masked], ids=["of the model", "custom"])
def test_ignored_labels_of_an_unknown_reduction_are_warned_of(loss):
    model = make(LossInside)
    whole = ns.curvature.dense(model, loss, MANY, kind="hessian")  # one batch: no warning
    with pytest.warns(NormscopeWarning, match="batches count by their samples") as caught:
        found = ns.curvature.dense(model, loss, HALVES, kind="hessian")
    assert caught[0].filename == __file__
    assert not torch.allclose(found, whole, rtol=0.1)
    said = "labels of -100" if loss == "model" else "neither the mean nor the sum"
    with pytest.warns(NormscopeWarning, match=said):
        ns.training.evaluate(model, loss, HALVES)
    ns.training.evaluate(model, loss, MANY)


def test_population_statistics_and_evaluate_take_mappings():
    expected = make(Normalized)
    ns.layers.population_statistics(expected.norm, LEFT)
    for data in ([TWO_INPUTS["mapping"]], TWO_INPUTS["user dict"], [(LEFT, RIGHT, LABELS)]):
        model = make(Normalized)
        ns.layers.population_statistics(model, data)
        assert torch.equal(model.norm.running_var, expected.norm.running_var)
    batch = TWO_INPUTS["mapping"]
    found = ns.training.evaluate(
        make(Normalized), "cross_entropy", batch, "population", train_data=batch, batch_size=512
    )
    by_hand = functional.cross_entropy(expected.eval()(LEFT, RIGHT), LABELS)
    assert found.loss == pytest.approx(by_hand.item())


def test_evaluate_of_a_structured_output_has_a_loss_and_by_logits_an_accuracy():
    class Classifier(TwoInputs):
        def forward(self, left, right, labels=None):
            logits = super().forward(left, right)
            return {"loss": functional.cross_entropy(logits, labels), "logits": logits}

    model = make(Classifier)
    found = ns.training.evaluate(model, None, TWO_INPUTS["mapping"], batch_size=2)
    expected = ns.training.evaluate(make(TwoInputs), "cross_entropy", (LEFT, RIGHT, LABELS))
    assert found.loss == pytest.approx(expected.loss)
    assert found.accuracy == expected.accuracy
    pair = ns.training.evaluate(
        make(Classifier),
        lambda output, target: functional.cross_entropy(output["logits"], target, reduction="sum"),
        TWO_INPUTS["mapping"],
        batch_size=2,
    )
    assert pair.loss == pytest.approx(5 * expected.loss)  # found to be a sum
