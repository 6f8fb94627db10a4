"""`compare` of transformers: norm layers over tokens."""

import inspect

import pytest
import torch
from tests.unit.layers.token_networks import network
from torch import nn

import normscope as ns
from normscope.errors import InputError
from normscope.layers import PositionNorm

QUICK = {"verify": False, "steps": 2}
LOSSES = {"vit": "cross_entropy", "gpt": nn.CrossEntropyLoss(), "llama": nn.CrossEntropyLoss()}


@pytest.mark.parametrize("name", ["vit", "gpt", "llama"])
def test_norms_that_treat_each_token_by_itself_are_the_default(name):
    model, data = network(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    states = torch.get_rng_state()
    compared = ns.compare(model, LOSSES[name], data, **QUICK)
    assert [row.norm for row in compared.rows] == ["none", "layer", "rms", "dyt"]
    assert torch.equal(states, torch.get_rng_state())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    own = compared["rms" if name == "llama" else "layer"]
    assert own.losses[0] == pytest.approx(first_loss(model, data), rel=1e-5)
    for row in compared.rows:
        assert row.advice.limit > 0
        assert row.lambda_max["train"] == pytest.approx(row.lambda_max["eval"], rel=0.03)


def first_loss(model, data):
    return nn.functional.cross_entropy(model(data[0]), data[1]).item()


@pytest.mark.parametrize("kind", ["batch", "rms", "dyt"])
def test_curvature_is_that_of_the_dense_matrix(kind):
    model, data = network("vit")
    row = ns.compare(model, "cross_entropy", data, norms=[kind], **QUICK)[kind]
    network_of_kind = ns.layers.convert(model, to=kind).double()
    x, y = data[0].double(), data[1]
    names = [name for name, _ in network_of_kind.named_parameters()]
    parameters = tuple(network_of_kind.parameters())

    def outputs(*values):
        named = dict(zip(names, values, strict=True))
        return torch.func.functional_call(network_of_kind, named, (x,))

    parts = torch.autograd.functional.jacobian(outputs, parameters)
    jacobian = torch.cat([part.flatten(2) for part in parts], 2)  # (samples, classes, parameters)
    p = outputs(*parameters).softmax(1)
    hessians = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    matrix = torch.einsum("nap,nab,nbq->pq", jacobian, hessians, jacobian) / len(y)
    exact = torch.linalg.eigvalsh(matrix.detach())[-1].item()
    assert row.lambda_max["train"] == pytest.approx(exact, rel=0.03)


def test_batch_statistics_over_tokens_can_be_compared_if_asked_for():
    model, data = network("gpt")
    row = ns.compare(model, LOSSES["gpt"], data, norms=["batch"], **QUICK)["batch"]
    assert row.lambda_max["train"] != pytest.approx(row.lambda_max["frozen"], rel=0.01)


def test_norm_that_does_not_fit_is_refused_with_those_that_do():
    model, data = network("vit")
    with pytest.raises(InputError) as caught:
        ns.compare(model, "cross_entropy", data, norms=["layer", "instance", "rms"], **QUICK)
    assert str(caught.value).startswith("the norm instance does not fit the model: instance")
    assert str(caught.value).endswith("or leave it out: norms=['layer', 'rms'].")


def perceptron(positions):
    torch.manual_seed(0)
    layers = [nn.Linear(5, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)]
    model = nn.Sequential(*layers, *([nn.Flatten(), nn.Linear(6, 3)] if positions else []))
    return model, (torch.randn(12, *positions, 5), torch.arange(12) % 3)


@pytest.mark.parametrize(
    ("positions", "norms"),
    [((), ["none", "batch", "layer"]), ((2,), ["none", "layer", "rms", "dyt"])],
)
def test_default_follows_from_what_the_layers_get(positions, norms):
    model, data = perceptron(positions)
    compared = ns.compare(model, "cross_entropy", data, **QUICK)
    assert [row.norm for row in compared.rows] == norms


def test_vectors_keep_the_plain_layer_and_its_theory():
    model, data = perceptron(())
    compared = ns.compare(model, "cross_entropy", data, norms=["batch"], **QUICK)
    plain = nn.Sequential(model[0], nn.BatchNorm1d(6), *model[2:])
    alone = ns.max_learning_rate(plain, "cross_entropy", data, verify=False)
    assert alone.theory is not None
    assert compared["batch"].advice.theory == pytest.approx(alone.theory, rel=1e-4)
    assert isinstance(ns.layers.convert(model, to="batch")[1], PositionNorm)  # without the data


def test_signature_shows_that_the_default_depends_on_the_model():
    assert inspect.signature(ns.compare).parameters["norms"].default is None
