"""Seeds: one range and one error wherever they enter."""

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope import theorems
from normscope.errors import ArgumentTypeError, InputError
from normscope.probes import ActivationMoments
from normscope.validation import as_seed

SMALLEST, LARGEST = -(2**63), 2**64 - 1


def arguments():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    return model, "cross_entropy", (torch.randn(12, 3), torch.arange(12) % 2)


def fit(*given, seed):
    return ns.fit(ns.Problem(*given), ns.sgd(0.1), 2, batch_size=4, seed=seed)


def train(*given, seed):
    return list(ns.train(ns.Problem(*given), ns.sgd(0.1), 2, batch_size=4, seed=seed))


def scope(model, loss, data, seed):
    watched = ns.Scope(model, loss, probes=[ActivationMoments(units=2)], every=1, seed=seed)
    watched.step(*data)
    return watched


def advise(*given, seed):
    return ns.max_learning_rate(*given, verify=False, seed=seed)


def compare(*given, seed):
    return ns.compare(*given, norms=["none", "batch"], verify=False, steps=1, seed=seed)


def surface(*given, seed):
    return ns.landscape.surface(*given, dimensions=1, points=3, hessian=False, seed=seed)


def check_layer(*given, seed):
    return theorems.check_layer(*given, "1", units=[0], seed=seed)


def check_cases(*_, seed):
    return theorems.check_cases("theorem_4_1", cases=1, seed=seed)


def build(*_, seed):
    return ns.models.build("deep_linear", seed=seed)


ENTRIES = [
    fit,
    train,
    scope,
    advise,
    compare,
    surface,
    ns.doctor,
    ns.curvature.operator,
    ns.curvature.dense,
    ns.curvature.top_eigenvalue,
    ns.curvature.trace,
    ns.curvature.spectrum,
    ns.curvature.batch_size_effect,
    check_layer,
    check_cases,
    build,
]


@pytest.mark.parametrize("seed", [SMALLEST - 1, LARGEST + 1], ids=["below", "above"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_seed_out_of_the_range_is_refused_in_one_sentence(entry, seed):
    message = rf"^seed must be from -2\*\*63 to 2\*\*64 - 1, got {seed}\.$"
    with pytest.raises(InputError, match=message):
        entry(*arguments(), seed=seed)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_seed_of_another_type_is_refused_in_one_sentence(entry):
    with pytest.raises(ArgumentTypeError, match=r"^seed must be an integer, got '0'\.$"):
        entry(*arguments(), seed="0")


@pytest.mark.filterwarnings("ignore::normscope.errors.NormscopeWarning")
@pytest.mark.parametrize("seed", [SMALLEST, LARGEST, np.uint64(LARGEST)], ids=repr)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_ends_of_the_range_are_seeds(entry, seed):
    entry(*arguments(), seed=seed)


@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1, 2**63, LARGEST, -1, SMALLEST])
def test_seed_gives_the_draws_that_it_gives_in_torch(seed):
    expected = torch.rand(4, generator=torch.Generator().manual_seed(seed))
    found = torch.rand(4, generator=torch.Generator().manual_seed(as_seed(seed)))
    assert torch.equal(found, expected)
