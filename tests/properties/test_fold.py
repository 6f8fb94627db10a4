"""Folding never changes what a net computes, whatever its layers and statistics."""

import copy
import itertools
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.random_networks import random_network
from torch import nn

from normscope.errors import NormscopeWarning, ShapeError
from normscope.layers import BatchNorm2d, LpNorm2d, NoisyBatchNorm2d, fold, is_batch_norm
from normscope.layers.kinds import is_lp_norm

PARTS = ("conv", "grouped", "padded", "reflect", "transposed", "norm", "relu", "dropout", "group")
NORMS = (nn.BatchNorm2d, BatchNorm2d, NoisyBatchNorm2d, LpNorm2d)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Images of nine pixels: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def layer(part, channels, norm, affine):
    out = channels * 2 if channels < 8 else 4
    return {
        "conv": lambda: (nn.Conv2d(channels, out, 1, bias=affine), out),
        "grouped": lambda: (nn.Conv2d(channels, out, 1, groups=2), out),
        "padded": lambda: (nn.Conv2d(channels, out, 3, padding=1), out),
        "reflect": lambda: (
            nn.Conv2d(channels, out, 3, padding=1, padding_mode="reflect", bias=affine),
            out,
        ),
        "transposed": lambda: (nn.ConvTranspose2d(channels, out, 1, groups=2, bias=affine), out),
        "norm": lambda: (norm(channels, affine=affine), channels),
        "relu": lambda: (nn.ReLU(inplace=affine), channels),
        "dropout": lambda: (nn.Dropout2d(), channels),
        "group": lambda: (nn.GroupNorm(2, channels), channels),
    }[part]()


@st.composite
def nets(draw):
    """A Sequential of random parts, sometimes with one nested, with random running statistics."""
    channels, modules = 4, []
    for part in draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=8)):
        module, channels = layer(part, channels, draw(st.sampled_from(NORMS)), draw(st.booleans()))
        modules.append(module)
    cut = draw(st.integers(0, len(modules)))
    if draw(st.booleans()):
        modules = [*modules[:cut], nn.Sequential(*modules[cut:])]
    if draw(st.booleans()):
        modules += [nn.Flatten(), nn.Linear(9 * channels, 3)]
    torch.manual_seed(draw(st.integers(0, 2**31)))
    return with_random_statistics(nn.Sequential(*modules)).double()


def is_affine(module):
    return is_batch_norm(module) or is_lp_norm(module)


def with_random_statistics(model):
    for module in filter(is_affine, model.modules()):
        for name, tensor in module.state_dict(keep_vars=True).items():
            if name in ("running_var", "running_scale"):
                tensor.data.uniform_(0.1, 4.0)
            elif tensor.is_floating_point():
                tensor.data.normal_()
    return model


def folded_quietly(model, inputs=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NormscopeWarning)
        return fold(model, inputs=inputs)


def norms_directly_after_a_layer(model):
    """Names of the norms that any correct folding must remove."""
    flat = [(name, m) for name, m in model.named_modules() if type(m) is not nn.Sequential]
    layers = (nn.Conv2d, nn.ConvTranspose2d)
    pairs = itertools.pairwise(flat)
    return {name for (_, one), (name, two) in pairs if isinstance(one, layers) and is_affine(two)}


@settings(max_examples=120, deadline=None)
@given(nets())
def test_folded_net_computes_the_same(model):
    before = copy.deepcopy(model.state_dict())
    folded = folded_quietly(model)
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    with torch.no_grad():
        expected, result = copy.deepcopy(model).eval()(x.clone()), folded(x.clone())
    assert (result - expected).abs().max() <= 1e-10 * (1 + expected.abs().max())
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


@settings(max_examples=60, deadline=None)
@given(nets())
def test_norm_after_a_layer_is_gone_and_folding_again_changes_nothing(model):
    once = folded_quietly(model)
    left = {name for name, module in once.named_modules() if is_affine(module)}
    assert not left & norms_directly_after_a_layer(model)
    twice = folded_quietly(once)
    assert str(twice) == str(once)
    assert all(map(torch.equal, once.state_dict().values(), twice.state_dict().values()))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**31))
def test_fold_never_computes_something_else_in_silence(seed):
    model, x = random_network(seed)
    with torch.no_grad():
        expected = copy.deepcopy(model)(x.clone())
        given_inputs = folded_quietly(model, inputs=x)(x.clone())
    torch.testing.assert_close(given_inputs, expected, rtol=1e-8, atol=1e-8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folded = fold(model)
    if any("were not compared" in str(each.message) for each in caught):
        return
    try:
        with torch.no_grad():
            result = folded(x.clone())
    except ShapeError:  # folded for another number of dimensions
        return
    torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-8)
