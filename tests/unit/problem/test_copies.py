"""Copies of models with functions over themselves are independent, or refused."""

import functools

import pytest
import torch
from torch import nn

from normscope.errors import NoClosureError, StateError
from normscope.layers import convert, fold
from normscope.meanfield import predict
from normscope.problem.copies import copy_module


def wrapped(function):
    @functools.wraps(function)
    def call(*inputs):
        return function(*inputs)

    return call


def counting(layer):
    """A function that refers to itself and to a layer."""

    def call(x, again=True):
        return call(x, again=False) if again else layer(x)

    return call


HEADS = {
    "closure": lambda net: lambda x: net.last(x),
    "default": lambda net: lambda x, layer=net.last: layer(x),
    "keyword": lambda net: lambda x, *, layer=net.last: layer(x),
    "weight": lambda net: (
        lambda x, held=(net.last.weight, net.last.bias): nn.functional.linear(x, *held)
    ),
    "partial": lambda net: functools.partial(lambda layer, x: layer(x), net.last),
    "partial of a closure": lambda net: functools.partial(lambda twice, x: net.last(x), 2),
    "wrapped method": lambda net: wrapped(net.last.forward),
    "nested": lambda net: wrapped(lambda x: net.last(x)),
    "recursive": lambda net: counting(net.last),
    "method": lambda net: net.own,
    "layer": lambda net: net.last.forward,
    "list": lambda net: [lambda x: net.last(x)],
    "dictionary": lambda net: {0: (wrapped(net.last.forward),)},
}


class Net(nn.Module):
    """Calls its last layer through an attribute."""

    def __init__(self, head):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)
        self.head = HEADS[head](self)

    def own(self, x):
        return self.last(x)

    def forward(self, x):
        head = self.head
        while isinstance(head, list | tuple | dict):
            head = head[0]
        return head(self.norm(self.first(x)))


@pytest.mark.parametrize("copied", [copy_module, fold, functools.partial(convert, to="layer")])
@pytest.mark.parametrize("head", HEADS)
def test_copy_runs_its_own_layers(head, copied):
    model = Net(head).eval()
    inputs = torch.randn(5, 3)
    twin, before = copied(model), model(inputs)
    with torch.no_grad():
        twin.last.weight.zero_()
        twin.last.bias.fill_(7.0)
    assert torch.equal(twin(inputs), torch.full((5, 2), 7.0))
    assert torch.equal(model(inputs), before)
    twin(inputs).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert twin.last.bias.grad is not None


def test_function_that_does_not_refer_to_the_model_is_the_same_in_a_copy():
    model = nn.Linear(2, 2)
    model.activation = activation = lambda x: x.relu()
    model.name_of = name_of = lambda x: x.model
    twin = copy_module(model)
    assert twin.activation is activation
    assert twin.name_of is name_of


def script_model():
    """A model as a script makes it, whose replaced forward pass uses a global name."""
    space = {"model": nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))}
    exec("model.forward = lambda x: model[1](model[0](x))", space)
    return space["model"]


@pytest.mark.parametrize("copied", [copy_module, fold, functools.partial(convert, to="layer")])
def test_function_with_a_global_model_is_refused(copied):
    with pytest.raises(StateError, match=r"'forward' of the model .* by a global name") as caught:
        copied(script_model())
    assert "\n" not in str(caught.value)


def test_theory_says_why_it_does_not_read_such_a_model():
    with pytest.raises(NoClosureError, match="Sequential: the attribute 'forward' of the model is"):
        predict(script_model(), (3,))
