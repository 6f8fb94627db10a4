"""The scope on models with structured outputs and on batches of other forms than (x, y)."""

import pytest
import torch
from tests.unit.structured import (
    EDGES,
    GraphOfData,
    LossInside,
    StandIn,
    TwoInputs,
    Vae,
    drawn,
    labels,
    make,
    vae_loss,
)

import normscope as ns
from normscope.errors import ArgumentTypeError, NormscopeError
from normscope.probes import Curvature

TOKENS = labels(5, 6, 4)
NODES = StandIn(x=drawn(5, 4), edge_index=EDGES, y=labels(2, 5))
CASES = {
    "loss inside": (LossInside, "model", {"tokens": TOKENS, "labels": TOKENS}),
    "none": (LossInside, None, {"tokens": TOKENS, "labels": TOKENS}),
    "vae": (Vae, vae_loss, (drawn(5, 4), drawn(5, 4, seed=4))),
    "three": (TwoInputs, "cross_entropy", (drawn(5, 4), drawn(5, 2), labels(3, 5))),
    "graph": (GraphOfData, "cross_entropy", NODES),
}


def train(kind, loss, batch, watched):
    model = make(kind)
    problem = ns.Problem(model, loss, batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scope = None
    if watched:
        probes = ["loss_variation", "gradient_norms", Curvature("ggn")]
        scope = ns.Scope(model, loss, optimizer, probes=probes, every=1)
    for _ in range(3):
        optimizer.zero_grad()
        problem.loss_on(batch).backward()
        if scope is not None:
            scope.step(batch)
        optimizer.step()
    return model, scope


@pytest.mark.parametrize(("kind", "loss", "batch"), CASES.values(), ids=CASES)
def test_training_is_bit_identical_and_the_curvature_that_of_the_step(kind, loss, batch):
    alone, _ = train(kind, loss, batch, watched=False)
    model, scope = train(kind, loss, batch, watched=True)
    pairs = zip(alone.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    expected = ns.curvature.top_eigenvalue(make(kind), loss, batch, kind="ggn", tol=1e-4)
    first = scope.results["top_eigenvalue"].values[0]
    assert first == pytest.approx(expected.value, rel=1e-3)
    assert scope.results["loss"].values[-1] < scope.results["loss"].values[0]


def test_every_probe_measures_a_model_that_computes_its_loss():
    model = make(LossInside)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ns.Scope(model, None, optimizer, every=1) as scope:
        for _ in range(2):
            scope.step({"tokens": TOKENS, "labels": TOKENS})
    assert len(scope.results) > 8
    assert scope._settings()["loss"] == "model"


def test_pair_of_structured_inputs_and_targets_may_be_given_apart():
    left, right, target = CASES["three"][2]
    model = make(TwoInputs)
    with ns.Scope(model, "cross_entropy", probes="gradient_norms", learning_rate=0.1) as scope:
        scope.step((left, right), target)
        scope.step({"left": left, "right": right}, target)
    assert len(set(scope.results["loss"].values.tolist())) == 1


@pytest.mark.parametrize("batch", [torch.ones(3, 4), 3, {"left": torch.ones(2, 4)}])
def test_batch_of_another_form_is_refused(batch):
    scope = ns.Scope(make(TwoInputs), "cross_entropy", probes="gradient_norms", learning_rate=0.1)
    with pytest.raises(ArgumentTypeError) as caught:
        scope.step(batch)
    assert isinstance(caught.value, NormscopeError)
