"""No observer effect on state that is neither parameter nor buffer, nor on that of the loss."""

import functools
import random
from collections import OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import normscope as ns
from normscope.errors import NormscopeWarning
from normscope.probes import PROBES, EffectiveSmoothness, Scope


class Remembering(nn.Module):
    """Generators of NumPy and Python, tensors and lists that its forward changes in place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.numpy = np.random.default_rng(1)
        self.old = np.random.RandomState(2)
        self.python = random.Random(3)
        self.generators = [np.random.default_rng(4)]
        self.hidden = torch.zeros(3)
        self.part = self.hidden[:1]  # of the same memory
        self.log = []
        self.counts = {"calls": 0, "sums": [torch.zeros(())]}

    def forward(self, x):
        noise = self.numpy.random() * self.old.rand() * self.python.random()
        output = self.second(torch.tanh(self.first(x + noise * self.generators[0].random())))
        output = output + self.hidden + 0.1 * self.part
        self.hidden.mul_(0.5).add_(output.detach().mean(0))
        self.log.append(noise)
        self.counts["calls"] += 1
        self.counts["sums"][0] += noise
        return output

    def everything(self):
        draws = [self.numpy.random(), self.old.rand(), self.python.random()]
        last = self.generators[0].random()
        return *draws, last, self.hidden.tolist(), self.part.tolist(), self.log, repr(self.counts)


class Centred(nn.Module):
    """A loss with a running mean of the outputs, and noise from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.seen = torch.zeros(())
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, output, target):
        noise = 0.01 * torch.randn(output.shape, generator=self.generator)
        loss = functional.cross_entropy(output - self.centre + noise, target)
        self.centre.mul_(0.9).add_(output.detach().mean(0), alpha=0.1)
        self.seen += 1
        return loss


def called(criterion, model, data):
    return criterion(model(data[0]), data[1])


WAYS = {
    "itself": lambda criterion: criterion,
    "method": lambda criterion: criterion.forward,
    "closure": lambda criterion: lambda output, target: criterion(output, target),
    "whole closure": lambda criterion: ns.whole_loss(
        lambda model, data: criterion(model(data[0]), data[1])
    ),
    "whole partial": lambda criterion: ns.whole_loss(functools.partial(called, criterion)),
}
CONFIGURED = {"effective_smoothness": EffectiveSmoothness(local=True)}


def train(probes, way="itself", steps=4):
    torch.manual_seed(0)
    model, criterion = Remembering(), Centred()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loss = WAYS[way](criterion)
    scope = Scope(model, loss, optimizer, probes, every=2) if probes else None
    for _ in range(steps):
        x, y = torch.randn(5, 4), torch.randint(0, 3, (5,))
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        if scope is not None:
            scope.step(*(((x, y),) if "whole" in way else (x, y)))
        optimizer.step()
    state = [p.tolist() for p in model.parameters()]
    of_loss = criterion.centre.tolist(), criterion.seen.item(), criterion.generator.get_state()
    return scope, repr((state, model.everything(), of_loss))


@pytest.mark.parametrize("probe", PROBES)
def test_state_of_model_and_loss_is_left_alone(probe):
    scope, state = train([CONFIGURED.get(probe, probe)])
    assert state == train(None)[1]
    assert all(np.isfinite(values[0]).any() for values in scope.results.values() if values.size)


@pytest.mark.parametrize("way", WAYS)
def test_loss_may_be_named_in_many_ways(way):
    assert train("full", way)[1] == train(None)[1]


class Nested(nn.Module):
    """One of each kind of attribute that docs/reference/guarantees.md promises to bring back."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.count, self.text = 0, ""
        self.deep = {"a": [deque([torch.zeros(2)]), {"b": ({1}, [])}]}
        self.filled = defaultdict(list)
        self.ordered = OrderedDict(draws=torch.Generator().manual_seed(1))
        self.pair = (random.Random(2), np.random.default_rng(3))
        self.buried = [[deque([torch.Generator().manual_seed(4)])]]
        self.deep["itself"] = self.deep
        self.array, self.octets = np.zeros(3), bytearray(2)
        self.part = {"view": self.array[:2]}
        self.seen = {torch.zeros(1)}

    def forward(self, x):
        self.count, self.text = self.count + 1, f"{self.text}."
        queue, inner = self.deep["a"]
        queue[0] += 1
        queue.append(torch.ones(2))
        inner["b"][0].add(len(inner["b"][0]) + 1)
        inner["b"][1].append(self.count)
        self.filled[self.count].append(self.text)
        torch.rand(1, generator=self.ordered["draws"])
        self.pair[0].random(), self.pair[1].random()
        torch.rand(1, generator=self.buried[0][0][0])
        self.array += 1
        self.octets[0] += 1
        next(iter(self.seen)).add_(1)
        return self.layer(x)

    def everything(self):
        draws = self.ordered["draws"].get_state().tolist(), self.pair[0].getstate()
        numpy = self.pair[1].bit_generator.state, self.array.tolist(), self.part
        buried = self.buried[0][0][0].get_state().tolist(), self.octets, self.seen
        return repr((self.count, self.text, self.deep, self.filled, draws, numpy, buried))


def watched(model, *batch):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    Scope(model, "cross_entropy", optimizer, "all", every=1).step(*batch)


def measured(model, *batch):
    ns.curvature.top_eigenvalue(model, "cross_entropy", batch)
    ns.curvature.top_eigenvalue(model, "cross_entropy", batch, kind="hessian", mode="eval")


def advised(model, *batch):
    ns.max_learning_rate(model, "cross_entropy", batch)


@pytest.mark.parametrize("look", [watched, measured, advised])
def test_attributes_in_each_other_come_back(look):
    torch.manual_seed(0)
    model = Nested()
    before = model.everything()
    look(model, torch.randn(5, 4), torch.randint(0, 3, (5,)))
    assert model.everything() == before
    model(torch.randn(5, 4))
    assert model.everything() != before  # a pass of the training's own does change it


class Growing(nn.Module):
    """Its pass resizes an array, which cannot be put back; what else it changes can."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.before, self.after = np.zeros(2), torch.Generator().manual_seed(0)
        self.history = np.zeros(1)

    def forward(self, x):
        self.before += 1
        self.history.resize(len(self.history) + 1, refcheck=False)
        torch.rand(1, generator=self.after)
        return self.layer(x)


def test_array_that_cannot_be_put_back_is_told_and_the_rest_comes_back():
    model = Growing()
    state = model.after.get_state()
    scope = Scope(model, "cross_entropy", probes=["gradient_norms"])
    with pytest.warns(NormscopeWarning, match="1 NumPy arrays or bytearrays .* resized"):
        scope.step(torch.randn(5, 4), torch.randint(0, 3, (5,)))
    assert model.before.tolist() == [0, 0]
    assert torch.equal(model.after.get_state(), state)


def test_comparison_sees_a_difference():
    assert train(None, steps=3)[1] != train(None)[1]


def test_views_of_one_memory_stay_such_during_the_pass():
    model = Remembering()
    seen = []
    model.register_forward_hook(lambda m, *_: seen.append(m.part.item() == m.hidden[0].item()))
    scope = Scope(model, "cross_entropy", probes=["gradient_norms"])
    scope.step(torch.randn(5, 4), torch.randint(0, 3, (5,)))
    assert seen == [True]
    assert model.part.item() == 0
    assert model.log == []


def test_views_of_one_array_stay_such_during_the_pass():
    model, seen = Nested(), []
    model.register_forward_hook(lambda m, *_: seen.append((*m.part["view"], *m.array[:2])))
    scope = Scope(model, "cross_entropy", probes=["gradient_norms"])
    scope.step(torch.randn(5, 4), torch.randint(0, 3, (5,)))
    assert seen == [(1, 1, 1, 1)]


def test_points_of_the_ray_draw_the_same_numbers():
    model = Remembering()
    draws = []
    model.register_forward_hook(lambda m, *_: draws.append(m.log[-1]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scope = Scope(model, "cross_entropy", optimizer, ["gradient_predictiveness"])
    scope.step(torch.randn(5, 4), torch.randint(0, 3, (5,)))
    assert len(draws) == 9
    assert len(set(draws)) == 1
