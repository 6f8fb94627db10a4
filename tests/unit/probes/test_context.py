"""The scope with the training's own loss and gradient: the same values, one pass less."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import InputError
from normscope.problem import cross_entropy

RAY = ["loss_variation", "gradient_predictiveness", "effective_smoothness"]
NAMES = ("loss", "ray_loss", "gradient_distance", "gradient_cosine")


class Counting(nn.Sequential):
    """Counts its forward passes."""

    calls = 0

    def forward(self, input):
        Counting.calls += 1
        return super().forward(input)


def network(*extra):
    torch.manual_seed(0)
    layers = (nn.Linear(6, 20), ns.layers.BatchNorm1d(20), nn.ReLU(), *extra, nn.Linear(20, 3))
    return Counting(*layers)


def trained(model, probes=RAY, give=True, steps=4, scale=1.0):
    """Some steps of a plain loop; the scope and the state at the end."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scope = ns.Scope(model, "cross_entropy", optimizer, probes, every=1, distances=[1, 2, 4])
    for _ in range(steps):
        x = torch.randn(16, 6, generator=generator)
        y = torch.randint(0, 3, (16,), generator=generator)
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        (scale * loss).backward()
        scope.step(x, y, loss if give else None)
        optimizer.step()
    return scope, optimizer


def test_values_are_those_of_the_scopes_own_gradient():
    given, own = trained(network())[0].results, trained(network(), give=False)[0].results
    for name in NAMES:
        np.testing.assert_allclose(given[name], own[name], rtol=1e-4, atol=1e-7, err_msg=name)


def test_steps_after_the_first_take_one_pass_for_each_point():
    Counting.calls = 0
    trained(network(), steps=1)
    first = Counting.calls
    Counting.calls = 0
    trained(network(), steps=3)
    assert Counting.calls - first == 2 * (1 + 3)  # the training's own, and the three points


def test_a_probe_of_the_pass_itself_gets_its_pass():
    probes = [*RAY, "gradient_norms"]
    given, own = trained(network(), probes)[0], trained(network(), probes, give=False)[0]
    np.testing.assert_array_equal(given.results["gradient_norm"], own.results["gradient_norm"])


def test_training_ends_in_the_same_bits():
    alone, watched = network(), network()
    optimizer = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        x = torch.randn(16, 6, generator=generator)
        y = torch.randint(0, 3, (16,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(alone(x), y).backward()
        optimizer.step()
    random = torch.get_rng_state()
    _, other = trained(watched)
    assert torch.equal(random, torch.get_rng_state())
    pairs = zip(alone.state_dict().values(), watched.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    for mine, theirs in zip(alone.parameters(), watched.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
        assert torch.equal(
            optimizer.state[mine]["momentum_buffer"], other.state[theirs]["momentum_buffer"]
        )


@pytest.mark.parametrize("scale", [2.0, 65536.0, 0.99])
def test_a_scaled_gradient_is_refused(scale):
    with pytest.raises(InputError, match="leave loss= out"):
        trained(network(), scale=scale)


def test_a_model_that_draws_random_numbers_is_refused():
    with pytest.raises(InputError, match="draws random numbers"):
        trained(network(nn.Dropout(0.5)))


def test_a_parameter_without_gradient_is_named():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scope = ns.Scope(model, "cross_entropy", optimizer, RAY, every=1)
    x, y = torch.randn(8, 6), torch.zeros(8, dtype=torch.long)
    with pytest.raises(InputError, match=r"'0\.weight' has none"):
        scope.step(x, y, loss=1.0)


def test_the_gradient_is_only_read():
    model = network()
    scope, _ = trained(model, steps=1)
    before = [copy.deepcopy(p.grad) for p in model.parameters()]
    x, y = torch.randn(8, 6), torch.zeros(8, dtype=torch.long)
    scope.step(x, y, loss=1.0)  # trusted now: what is there is taken
    assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters(), strict=True))
