"""Wide linear layers: their gradients are compared by factors, with the same result."""

import numpy as np
import pytest
import torch
from tests.references.probes import ray
from torch import nn

from normscope.curvature.problem import whole_loss
from normscope.losses import cross_entropy
from normscope.probes import Scope
from normscope.probes.shortcuts import factored

DISTANCES = [1e-4, 0.5, 1.0, 4.0]
PROBES = ["gradient_predictiveness", "effective_smoothness"]


def batch(samples=6, dtype=torch.double):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 150, generator=generator, dtype=dtype)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def chain(bias=True, inplace=True):
    return nn.Sequential(
        nn.Linear(150, 140, bias=bias),
        nn.BatchNorm1d(140),
        nn.ReLU(inplace),
        nn.Linear(140, 130, bias=bias),
        nn.ReLU(inplace),  # writes to the output of the layer itself
        nn.Linear(130, 10),
    ).double()


class Twice(nn.Module):
    """Uses one layer twice, and another's weight by itself once more."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(150, 150)
        self.second = nn.Linear(150, 150)
        self.third = nn.Linear(150, 150)
        self.head = nn.Linear(150, 10)

    def forward(self, x):
        x = torch.tanh(self.first(torch.tanh(self.first(x))))
        x = torch.tanh(self.second(x)) + x @ self.second.weight
        return self.head(torch.tanh(self.third(x)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(150, 150), nn.Linear(150, 150), nn.Linear(150, 10)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.head(torch.tanh(self.two(torch.tanh(self.one(x)))))


class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(150, 150), nn.Linear(150, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.wide(x[:, None])).mean(1))


class Fickle(nn.Module):
    """Takes another way, over the same layer twice, once its parameters have moved."""

    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(150, 150), nn.Linear(150, 10)
        self.home = self.wide.weight.sum().item()

    def forward(self, x):
        x = torch.tanh(self.wide(x))
        if abs(self.wide.weight.sum().item() - self.home) > 1e-3:
            x = torch.tanh(self.wide(x))
        return self.head(x)


class ByKeyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(150, 150), nn.Linear(150, 10)

    def forward(self, x):
        return self.head(input=torch.tanh(self.wide(input=x)))


class Watched(nn.Module):
    """Asks for the gradient by its inputs: the first layer's signals need not come back."""

    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(150, 150, bias=False), nn.Linear(150, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.wide(x.requires_grad_())))


class Later(Fickle):
    """Uses the weight by itself, once its parameters have moved."""

    def forward(self, x):
        moved = abs(self.wide.weight.sum().item() - self.home) > 1e-3
        penalty = 0.01 * self.wide.weight.square().sum() if moved else 0.0
        return self.head(torch.tanh(self.wide(x))) * (1.0 + penalty)


class Skipping(Fickle):
    """Leaves its wide layer out, once its parameters have moved."""

    def forward(self, x):
        moved = abs(self.wide.weight.sum().item() - self.home) > 1e-3
        return self.head(torch.tanh(x if moved else self.wide(x)))


@pytest.fixture
def met(monkeypatch):
    """The weights that were compared by factors, at any point."""
    names = set()
    products = factored.FactoredGradients.begin_pass

    def spied(self, model, comparison):
        names.update(name for name, factors in self._known.items() if factors is not None)
        return products(self, model, comparison)

    monkeypatch.setattr(factored.FactoredGradients, "begin_pass", spied)
    return names


CASES = {
    "chain": (chain, {"0.weight", "3.weight"}),
    "without bias": (lambda: chain(bias=False), {"3.weight"}),
    "used twice": (Twice, {"third.weight"}),
    "tied": (Tied, set()),
    "sequences": (Sequences, set()),
    "another way": (Fickle, {"wide.weight"}),
    "by keyword": (ByKeyword, {"wide.weight"}),
    "inputs that require a gradient": (Watched, {"wide.weight"}),
    "used by itself later": (Later, {"wide.weight"}),
    "left out later": (Skipping, {"wide.weight"}),
}


@pytest.mark.parametrize("case", CASES)
def test_factors_give_what_the_gradients_give(case, met):
    make, expected_names = CASES[case]
    torch.manual_seed(0)
    model = make().double()
    x, y = batch()
    rates = {name: 0.3 for name, _ in model.named_parameters()}
    expected = ray(model, cross_entropy, x, y, DISTANCES, rates)
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    scope = Scope(model, "cross_entropy", optimizer, PROBES, distances=DISTANCES)
    scope.step(x, y)
    results = scope.results.isel(step=0)
    assert met == expected_names
    for name, key in {"gradient_distance": "distance", "gradient_cosine": "cosine"}.items():
        np.testing.assert_allclose(results[name], [e[key] for e in expected], rtol=1e-8)


def test_many_samples_are_compared_by_gradients(met):
    model = chain()
    scope = Scope(model, "cross_entropy", torch.optim.SGD(model.parameters(), 0.3), PROBES)
    scope.step(*batch(60))
    assert met == set()


def test_autocast_is_compared_by_gradients(met):
    model = chain().float()
    scope = Scope(model, "cross_entropy", torch.optim.SGD(model.parameters(), 0.3), PROBES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scope.step(*batch(dtype=torch.float))
    assert met == set()
    assert np.isfinite(scope.results["gradient_distance"]).all()


def test_small_differences_survive_single_precision(met):
    model = chain()
    x, y = batch()
    rates = {name: 1.0 for name, _ in model.named_parameters()}
    distances = [1e-4, 1e-3, 1e-2]
    expected = [e["distance"] for e in ray(model, cross_entropy, x, y, distances, rates)]
    single = chain().float()
    single.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(single.parameters(), 1.0)
    scope = Scope(single, "cross_entropy", optimizer, PROBES, distances=distances)
    scope.step(x.float(), y)
    assert met
    # at 1e-4 the inputs themselves differ by no more than a thousand roundings
    np.testing.assert_allclose(scope.results["gradient_distance"][0], expected, rtol=0.02)


@pytest.mark.parametrize("place", [0, 3])
def test_loss_that_differentiates_by_itself_is_compared_by_gradients(place, met, monkeypatch):
    x, y = batch()
    model = chain(inplace=False)

    def adaptive(model, data):
        output = model(data[0])
        loss = cross_entropy(output, data[1])
        (inner,) = torch.autograd.grad(loss, model[place].weight, retain_graph=True)
        return loss + inner.norm().detach() * output.square().mean()

    def distances():
        optimizer = torch.optim.SGD(model.parameters(), 0.3)
        scope = Scope(model, whole_loss(adaptive), optimizer, PROBES, distances=DISTANCES)
        scope.step((x, y))
        return scope.results["gradient_distance"].values

    found = distances()
    assert f"{place}.weight" not in met
    monkeypatch.setattr(factored, "WIDE", 10**9)  # none is factored
    np.testing.assert_allclose(found, distances(), rtol=1e-8)


class Autocast(nn.Module):
    """Computes its wide layer in half precision."""

    def __init__(self):
        super().__init__()
        self.wide, self.head = nn.Linear(150, 150), nn.Linear(150, 10)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.wide(x)
        return self.head(torch.tanh(hidden.float()))


def test_autocast_inside_the_model_is_compared_by_gradients(met):
    model = Autocast()
    scope = Scope(model, "cross_entropy", torch.optim.SGD(model.parameters(), 0.3), PROBES)
    scope.step(*batch(dtype=torch.float))
    assert met == set()
    assert np.isfinite(scope.results["gradient_distance"]).all()
