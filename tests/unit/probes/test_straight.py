"""Layers that see the data: along the ray they are straight lines, with the same result."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from tests.references.probes import ray
from torch import nn
from torch.nn import functional

from normscope.losses import cross_entropy
from normscope.probes import Scope
from normscope.probes.gradients import GradientComparison, ReferenceGradient
from normscope.probes.ray import Ray
from normscope.probes.shortcuts import input_layers

DISTANCES = [1e-5, 1e-4, 0.5, 4.0]
PROBES = ["loss_variation", "gradient_predictiveness"]


def batch(samples=8, dtype=torch.double):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 150, generator=generator, dtype=dtype)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def chain(bias=True):
    first = nn.Linear(150, 140, bias=bias), nn.BatchNorm1d(140), nn.ReLU(inplace=True)
    return nn.Sequential(*first, nn.Linear(140, 130), nn.Tanh(), nn.Linear(130, 10))


def tied():
    """The first layer's weight is the second's too."""
    first, second = nn.Linear(150, 150), nn.Linear(150, 150)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(150, 10))


def shared():
    """The first layer comes twice."""
    layer = nn.Linear(150, 150)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(150, 10))


class Own(nn.Module):
    """A forward function of one's own, which reads the weight's values."""

    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(150, 150), nn.Linear(150, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.wide(x))) * self.wide.weight.detach().norm() / 10


class Turned(Own):
    """Changes what comes back."""

    def forward(self, x):
        hidden = self.wide(x)
        hidden.register_hook(lambda gradient: -gradient)
        return self.head(torch.tanh(hidden))


def hooked():
    model = chain()
    reader = model[0]
    model[3].register_forward_hook(lambda _, __, output: output * reader.weight.detach().norm())
    return model


def replaced():
    model = chain()
    forward = model.forward
    model.forward = lambda x: forward(x) * model[0].weight.detach().norm()
    return model


CASES = {
    "chain": (chain, {"0.weight"}),
    "without bias": (lambda: chain(bias=False), set()),
    "norm first": (lambda: nn.Sequential(nn.BatchNorm1d(150), *chain()), set()),
    "tied": (tied, {"0.weight"}),
    "shared": (shared, set()),
    "own forward": (Own, set()),
    "signals changed": (Turned, set()),
    "hooked": (hooked, set()),
    "forward replaced": (replaced, set()),
}


@pytest.fixture
def met(monkeypatch):
    """The weights that were straight, at any point."""
    names, meet = set(), input_layers.InputLayers.begin_pass

    def spied(self, model, comparison):
        names.update(self.names)
        return meet(self, model, comparison)

    monkeypatch.setattr(input_layers.InputLayers, "begin_pass", spied)
    return names


def walked(model, x, y, rate):
    """Loss, distance and cosine at each point, the model itself being moved there and back."""
    parameters = list(model.parameters())
    home, start = [p.detach().clone() for p in parameters], [p.grad.clone() for p in parameters]
    one = torch.cat([gradient.flatten() for gradient in start])
    found = []
    for distance in DISTANCES:
        with torch.no_grad():
            for parameter, place, gradient in zip(parameters, home, start, strict=True):
                parameter.copy_(place - distance * rate * gradient)
        loss = cross_entropy(model(x), y)
        other = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        cosine = functional.cosine_similarity(one, other, dim=0)
        found.append((loss.item(), (other - one).norm().item(), cosine.item()))
    with torch.no_grad():
        for parameter, place in zip(parameters, home, strict=True):
            parameter.copy_(place)
    return zip(*found, strict=True)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_lines_give_what_the_layers_give(case, given, met):
    make, expected_names = CASES[case]
    torch.manual_seed(0)
    model = make().double()
    x, y = batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    scope = Scope(model, "cross_entropy", optimizer, PROBES, 1, distances=DISTANCES)
    loss = cross_entropy(model(x), y)
    loss.backward()
    for _ in range(2):  # the first step checks the training's gradient, the second takes it
        scope.step(x, y, loss if given else None)
    assert met == expected_names
    names = "ray_loss", "gradient_distance", "gradient_cosine"
    for name, wanted in zip(names, walked(model, x, y, 0.3), strict=True):
        found = scope.results[name].isel(step=-1)
        # a difference is what is left of squares of size one, rounded at 1e-16
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=2e-11, err_msg=name)


def test_small_differences_survive_single_precision(met):
    torch.manual_seed(0)
    model = chain().double()
    x, y = batch()
    rates = {name: 1.0 for name, _ in model.named_parameters()}
    distances = [1e-5, 1e-4, 1e-3, 1e-2]
    expected = [e["distance"] for e in ray(model, cross_entropy, x, y, distances, rates)]
    single = chain()
    single.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(single.parameters(), 1.0)
    scope = Scope(single, "cross_entropy", optimizer, PROBES, distances=distances)
    scope.step(x.float(), y)
    assert met
    np.testing.assert_allclose(scope.results["gradient_distance"][0][1:], expected[1:], rtol=0.02)


def test_differences_that_are_lost_in_squares_are_taken_by_gradients(met):
    torch.manual_seed(0)
    model = chain().double()
    x, y = batch()
    distances, rates = [1.0, 2.0, 4.0], {name: 1e-9 for name, _ in model.named_parameters()}
    expected = [e["distance"] for e in ray(model, cross_entropy, x, y, distances, rates)]
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    scope = Scope(model, "cross_entropy", optimizer, PROBES, distances=distances)
    scope.step(x, y)
    assert met
    np.testing.assert_allclose(scope.results["gradient_distance"][0], expected, rtol=1e-4)


def layers_at_a_point(model, x):
    """Straight layers that have seen a first point, and are ready for another."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    gradient = {name: torch.ones_like(tensor) for name, tensor in parameters.items()}
    layers = input_layers.InputLayers(parameters, gradient, dict.fromkeys(parameters, 0.1))
    layers.record(model)
    model(x)
    del model[0].__dict__["_forward_pre_hooks"]
    model[0]._forward_pre_hooks = OrderedDict()
    layers.settle()
    layers.set_distance(2.0)
    comparison = GradientComparison(ReferenceGradient(gradient))
    layers.begin_pass(model, comparison)
    return layers


def test_other_inputs_are_noticed():
    x, _ = batch(dtype=torch.float)
    for inputs, valid in ((x, True), (2 * x, False), (x.clone().requires_grad_(), False)):
        model = chain()
        layers = layers_at_a_point(model, x)
        loss = model(inputs).sum()
        layers.inspect(loss, dict(model.named_parameters()))
        loss.backward()
        assert layers.is_valid == valid


def test_signals_that_come_twice_or_never_are_noticed():
    x, _ = batch(dtype=torch.float)
    for times in (0, 1, 2):
        model = chain()
        layers = layers_at_a_point(model, x)
        loss = model(x).sum()
        layers.inspect(loss, dict(model.named_parameters()))
        for _ in range(times):
            loss.backward(retain_graph=True)
        assert layers.is_valid == (times == 1)


def test_rates_of_groups_are_kept_apart(met):
    torch.manual_seed(0)
    model = chain().double()
    x, y = batch()
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[1:].parameters()}]
    rates = {n: 0.05 if n.startswith("0.") else 0.3 for n, _ in model.named_parameters()}
    expected = ray(model, cross_entropy, x, y, DISTANCES, rates)
    scope = Scope(model, "cross_entropy", torch.optim.SGD(groups, 0.3), PROBES, distances=DISTANCES)
    scope.step(x, y)
    assert met
    wanted = [e["distance"] for e in expected]
    np.testing.assert_allclose(scope.results["gradient_distance"][0], wanted, rtol=1e-7)


@pytest.mark.parametrize(("model", "stays"), [(chain, {"0.weight"}), (Own, set())])
def test_weight_stays_where_nobody_else_reads_it(model, stays, monkeypatch):
    left, move = [], Ray.move

    def spied(self, distance, excluded=()):
        left.append(set(excluded))
        move(self, distance, excluded)

    monkeypatch.setattr(Ray, "move", spied)
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), 0.3)
    scope = Scope(network, "cross_entropy", optimizer, PROBES, distances=DISTANCES)
    scope.step(*batch(dtype=torch.float))
    assert left == [set(), stays, stays, stays]


def test_weights_are_private_to_known_code_only():
    is_private = input_layers.weights_are_private
    for loss in ("cross_entropy", cross_entropy, nn.CrossEntropyLoss(), functional.cross_entropy):
        assert is_private(chain(), loss)
    assert not is_private(chain(), lambda output, target: output.sum())
    for model in (Own(), hooked(), replaced()):
        assert not is_private(model, cross_entropy)
    watched = chain()
    watched[3].register_forward_pre_hook(lambda *_: None)
    assert not is_private(watched, cross_entropy)
    with torch.autograd.forward_ad.dual_level():  # a line would lose the tangents
        assert not is_private(chain(), cross_entropy)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")  # torch's own layer
def test_sparse_inputs_are_left_to_the_layer(met):
    model = nn.Sequential(nn.Linear(150, 150), nn.Tanh(), nn.Linear(150, 10))
    x, y = batch(dtype=torch.float)
    scope = Scope(model, "cross_entropy", torch.optim.SGD(model.parameters(), 0.3), PROBES)
    scope.step(x.to_sparse(), y)
    assert met == set()
    dense = Scope(model, "cross_entropy", torch.optim.SGD(model.parameters(), 0.3), PROBES)
    dense.step(x, y)
    for name in ("ray_loss", "gradient_distance"):
        np.testing.assert_allclose(scope.results[name], dense.results[name], rtol=1e-4)


@pytest.mark.parametrize("samples", [37, 38])
def test_many_samples_are_left_to_the_layers(samples, met):
    model = chain()
    scope = Scope(model, "cross_entropy", torch.optim.SGD(model.parameters(), 0.3), PROBES)
    scope.step(*batch(samples, torch.float))
    assert bool(met) == (4 * samples <= 150)
