"""`isolated(trainable=True)`: the model itself is trained, and comes back bit for bit."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.problem import isolated


class Stateful(nn.Module):
    """A network with every kind of state that training can change."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 2)
        self.queue = Queue()
        self.unregistered = [nn.BatchNorm1d(2)]
        self.head = lambda x: self.last(x)

    def forward(self, x):
        self.queue.add(x)
        return self.unregistered[0](self.head(self.norm(self.first(x)).relu()))


class Queue:
    """An object that a forward pass changes."""

    def __init__(self):
        self.sums = []

    def add(self, x):
        self.sums.append(float(x.sum()))


def train(model, optimizer, steps=3, fails=None):
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(torch.ones(3, 4).cumsum(0))
        functional.cross_entropy(output, torch.tensor([0, 1, 0])).backward()
        optimizer.step()
    if fails is not None:
        raise fails


def state(model):
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    tensors |= {f"hidden.{name}": t for name, t in model.unregistered[0].state_dict().items()}
    return {
        name: (tensor.data_ptr(), tensor._version, tensor.requires_grad, tensor.detach().clone())
        for name, tensor in tensors.items()
    }


def assert_same(one, other):
    for name, (*plain, values) in one.items():
        assert plain == list(other[name][:-1]), name
        assert torch.equal(values, other[name][-1]), name


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_training_leaves_no_trace(error):
    model = Stateful()
    model.first.bias.requires_grad_(False)
    model.last.weight.grad = gradient = torch.ones_like(model.last.weight)
    before, held = state(model), list(model.parameters())
    expected = pytest.raises(error) if error else nullcontext()
    with expected, isolated(model, trainable=True):
        model.first.bias.requires_grad_(True)
        train(model, torch.optim.SGD(held, lr=0.5), fails=error and error())
    assert_same(before, state(model))
    assert all(one is other for one, other in zip(held, model.parameters(), strict=True))
    assert model.last.weight.grad is gradient
    assert torch.equal(gradient, torch.ones_like(gradient))
    assert all(p.grad is None for p in model.unregistered[0].parameters())
    assert model.queue.sums == []


def test_training_is_that_of_a_plain_copy():
    model, twin = Stateful(), Stateful()
    train(twin, torch.optim.Adam(twin.parameters(), lr=0.1))
    with isolated(model, trainable=True):
        train(model, torch.optim.Adam(model.parameters(), lr=0.1))
        for (name, one), other in zip(
            model.state_dict().items(), twin.state_dict().values(), strict=True
        ):
            assert torch.equal(one, other), name


def test_graph_built_before_can_still_be_differentiated():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    expected = copy.deepcopy(model)
    expected(torch.ones(3, 2)).square().sum().backward()
    loss = model(torch.ones(3, 2)).square().sum()
    with isolated(model, trainable=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    loss.backward()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_parameters_that_share_memory_share_it_inside():
    flat = torch.arange(6.0)
    model = nn.ParameterList([nn.Parameter(flat[:4].view(2, 2)), nn.Parameter(flat[2:])])
    with isolated(model, trainable=True), torch.no_grad():
        model[0].fill_(-1.0)
        assert model[1].tolist() == [-1, -1, 4, 5]
    assert flat.tolist() == [0, 1, 2, 3, 4, 5]
    assert model[1].data_ptr() == flat[2:].data_ptr()


def test_parameters_of_inference_mode_are_trained():
    with torch.inference_mode():
        model = nn.Linear(2, 1)
    weight, values = model.weight, model.weight.clone()
    with torch.inference_mode(False), isolated(model, trainable=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert torch.equal(model.weight, values - 1)
    assert model.weight is weight
    assert torch.equal(weight, values)
