"""Conversion leaves the given model and every random number generator as they were."""

import copy
import random
import warnings
from contextlib import nullcontext, suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.layers.token_networks import NETWORKS, network
from torch import nn
from torch.nn.utils import parametrizations

from normscope.errors import InputError
from normscope.layers import NORMS, convert, norm_layers, plan_conversion

REPARAMETRIZATIONS = {
    "plain": lambda layer: layer,
    "spectral": parametrizations.spectral_norm,
    "spectral_hook": nn.utils.spectral_norm,
    "weight": parametrizations.weight_norm,
    "weight_hook": nn.utils.weight_norm,
}
BETWEEN = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "nothing": lambda size: nn.Identity(),
}


class Drawing(nn.BatchNorm1d):
    """Batch norm that draws in every pass, as some with a fused dropout do."""

    def forward(self, x):
        _ = torch.rand(2), np.random.rand(), random.random()  # noqa: NPY002 - a user's
        return super().forward(x)


def dense(reparametrize, norm, seed):
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the old forms are deprecated
        layers = [
            reparametrize(nn.Linear(4, 5)),
            norm(5),
            nn.ReLU(),
            reparametrize(nn.Linear(5, 3)),
        ]
    model = nn.Sequential(*layers)
    model(torch.randn(6, 4)).sum().backward()
    return model


def everything(model):
    """Return tensors, gradients, hooks, attributes and flags of a model, for comparison."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        "tensors": [
            (name, id(each), each.detach().clone(), each._version) for name, each in tensors
        ],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "flags": [module.training for module in model.modules()],
        "printed": str(model),
    }


def assert_same(first, second):
    for one, two in zip(first.pop("tensors"), second.pop("tensors"), strict=True):
        assert one[:2] == two[:2]
        assert one[3] == two[3]
        assert torch.equal(one[2], two[2]), one[0]
    for one, two in zip(first.pop("gradients"), second.pop("gradients"), strict=True):
        assert (one is None and two is None) or torch.equal(one, two)
    assert first == second


def random_states():
    numpy = np.random.get_state()  # noqa: NPY002 - the global one is meant
    return torch.get_rng_state().tolist(), numpy[1].tolist(), numpy[2], random.getstate()


def assert_untouched(model, to):
    before, states = everything(model), random_states()
    refused = suppress(InputError) if to == "instance" else nullcontext()  # tokens and vectors
    for function in (convert, plan_conversion):
        with refused:
            function(model, to)
    norm_layers(model, weight_norms=True)
    assert random_states() == states
    assert_same(before, everything(model))


@settings(deadline=None)
@given(
    form=st.sampled_from(sorted(REPARAMETRIZATIONS)),
    norm=st.sampled_from(sorted(BETWEEN)),
    to=st.sampled_from(sorted(NORMS)),
    training=st.booleans(),
    seed=st.integers(0, 100),
)
def test_dense_networks_are_untouched(form, norm, to, training, seed):
    model = dense(REPARAMETRIZATIONS[form], BETWEEN[norm], seed)
    assert_untouched(model.train(training), to)


@pytest.mark.parametrize("to", sorted(NORMS))
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_token_networks_are_untouched(name, to):
    assert_untouched(network(name)[0], to)


@pytest.mark.parametrize("to", ["none", "layer", "rms"])
def test_draws_of_a_users_layer_are_taken_back(to):
    assert_untouched(nn.Sequential(nn.Linear(4, 5), Drawing(5)), to)


@settings(deadline=None, max_examples=30)
@given(
    kinds=st.lists(st.sampled_from(sorted(set(NORMS) - {"instance", "none"})), max_size=4),
    name=st.sampled_from(["vit", "gpt", "llama"]),
)
def test_any_chain_of_conversions_keeps_scale_and_shift(kinds, name):
    model, _ = network(name)
    own = "rms" if name == "llama" else "layer"
    converted = copy.deepcopy(model)
    for kind in [*kinds, own]:
        converted = convert(converted, kind)
    converted_parameters = dict(converted.named_parameters())  # l_p norms add a shift
    for parameter_name, old in model.named_parameters():
        assert torch.equal(old, converted_parameters[parameter_name])
