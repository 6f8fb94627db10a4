"""Layers that see the data: along the ray they are straight lines, with the same result."""

import numpy as np
import pytest
import torch
from tests.references.probes import ray
from torch import nn

from normscope.curvature.problem import whole_loss
from normscope.losses import cross_entropy
from normscope.probes import Scope, straight
from normscope.probes.ray import Ray

DISTANCES = [1e-5, 1e-4, 0.5, 4.0]
PROBES = ["loss_variation", "gradient_predictiveness"]


def batch(samples=8, dtype=torch.double):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 150, generator=generator, dtype=dtype)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def chain(bias=True):
    first = nn.Linear(150, 140, bias=bias), nn.BatchNorm1d(140), nn.ReLU(inplace=True)
    return nn.Sequential(*first, nn.Linear(140, 130), nn.Tanh(), nn.Linear(130, 10))


class Own(nn.Module):
    """A forward function of one's own, over the same layers."""

    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(150, 150), nn.Linear(150, 10)
        self.home = self.wide.weight.sum().item()

    @property
    def has_moved(self):
        return abs(self.wide.weight.sum().item() - self.home) > 1e-3

    def forward(self, x):
        return self.head(torch.tanh(self.wide(x)))


class TwoBranches(Own):
    """Two layers that see the data."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(150, 150)

    def forward(self, x):
        return self.head(torch.tanh(self.wide(x)) + torch.tanh(self.other(x)))


class Tied(Own):
    def __init__(self):
        super().__init__()
        self.second = nn.Linear(150, 150)
        self.second.weight = self.wide.weight

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.wide(x)))))


class Twice(Own):
    """Over the same layer twice, once it has moved."""

    def forward(self, x):
        x = torch.tanh(self.wide(x))
        return self.head(torch.tanh(self.wide(x)) if self.has_moved else x)


class Later(Own):
    """Uses the weight by itself, once it has moved."""

    def forward(self, x):
        penalty = 0.01 * self.wide.weight.square().sum() if self.has_moved else 0.0
        return super().forward(x) * (1.0 + penalty)


class Skipping(Own):
    """Leaves the layer out, once it has moved."""

    def forward(self, x):
        return self.head(x) if self.has_moved else super().forward(x)


class Scaled(Own):
    """Gives the layer other data, once it has moved."""

    def forward(self, x):
        return super().forward(2 * x if self.has_moved else x)


class Looked(Own):
    """Reads the weight's values, by which no gradient comes back."""

    def forward(self, x):
        return super().forward(x) * self.wide.weight.detach().norm()


CASES = {
    "chain": (chain, {"0.weight"}),
    "without bias": (lambda: chain(bias=False), set()),
    "own forward": (Own, {"wide.weight"}),
    "two branches": (TwoBranches, {"wide.weight", "other.weight"}),
    "tied": (Tied, {"wide.weight"}),
    "twice": (Twice, {"wide.weight"}),
    "used by itself later": (Later, {"wide.weight"}),
    "left out later": (Skipping, {"wide.weight"}),
    "other data later": (Scaled, {"wide.weight"}),
    "its values read": (Looked, {"wide.weight"}),
}


@pytest.fixture
def met(monkeypatch):
    """The weights that were straight, at any point."""
    names, meet = set(), straight.StraightLayers.meet

    def spied(self, model, see):
        names.update(self.names)
        return meet(self, model, see)

    monkeypatch.setattr(straight.StraightLayers, "meet", spied)
    return names


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_lines_give_what_the_layers_give(case, given, met):
    make, expected_names = CASES[case]
    torch.manual_seed(0)
    model = make().double()
    x, y = batch()
    rates = {name: 0.3 for name, _ in model.named_parameters()}
    expected = ray(model, cross_entropy, x, y, DISTANCES, rates)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    scope = Scope(model, "cross_entropy", optimizer, PROBES, 1, distances=DISTANCES)
    loss = cross_entropy(model(x), y)
    loss.backward()
    for _ in range(2):  # the first step checks the training's gradient, the second takes it
        scope.step(x, y, loss if given else None)
    assert met == expected_names
    names = {"ray_loss": "loss", "gradient_distance": "distance", "gradient_cosine": "cosine"}
    for name, key in names.items():
        found = scope.results[name].isel(step=-1)
        wanted = [e[key] for e in expected]
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


def test_loss_that_differentiates_by_itself_is_compared_by_gradients(met, monkeypatch):
    x, y = batch()
    torch.manual_seed(0)
    model = Own().double()

    def adaptive(model, data):
        output = model(data[0])
        loss = cross_entropy(output, data[1])
        (inner,) = torch.autograd.grad(loss, model.wide.weight, retain_graph=True)
        return loss + inner.norm().detach() * output.square().mean()

    def distances():
        optimizer = torch.optim.SGD(model.parameters(), 0.3)
        scope = Scope(model, whole_loss(adaptive), optimizer, PROBES, distances=DISTANCES)
        scope.step((x, y))
        return scope.results["gradient_distance"].values

    found = distances()
    assert met == {"wide.weight"}
    monkeypatch.setattr(straight, "_LEAST_ENTRIES", 10**9)
    np.testing.assert_allclose(found, distances(), rtol=1e-8)


@pytest.mark.parametrize(("model", "stays"), [(chain, {"0.weight"}), (Own, set())])
def test_weight_stays_where_nobody_else_reads_it(model, stays, monkeypatch):
    left, move = [], Ray.move

    def spied(self, distance, but=()):
        left.append(set(but))
        move(self, distance, but)

    monkeypatch.setattr(Ray, "move", spied)
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), 0.3)
    scope = Scope(network, "cross_entropy", optimizer, PROBES, distances=DISTANCES)
    scope.step(*batch(dtype=torch.float))
    assert left == [set(), stays, stays, stays]


def test_weights_are_not_private_to_a_model_with_hooks():
    model = chain()
    assert straight.weights_are_private(model, cross_entropy)
    model[3].register_forward_hook(lambda *_: None)
    assert not straight.weights_are_private(model, cross_entropy)


@pytest.mark.parametrize("samples", [37, 38])
def test_many_samples_are_left_to_the_layers(samples, met):
    model = Own()
    scope = Scope(model, "cross_entropy", torch.optim.SGD(model.parameters(), 0.3), PROBES)
    scope.step(*batch(samples, torch.float))
    assert bool(met) == (4 * samples <= 150)
