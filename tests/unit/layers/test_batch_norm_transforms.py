"""Layers inside torch.func: running statistics as arguments and captured, ensembles by vmap."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import func, nn

from normscope.layers import BatchNorm1d

# The first use of forward mode makes PyTorch script its own decompositions.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def _normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _network(seed, momentum=0.1, norm=BatchNorm1d):
    network = nn.Sequential(nn.Linear(3, 4), norm(4, momentum=momentum), nn.Tanh(), nn.Linear(4, 2))
    network.double()
    with torch.no_grad():
        for index, parameter in enumerate(network.parameters()):
            parameter.copy_(_normal(*parameter.shape, seed=10 * seed + index))
    return network


def _loss(network, params, buffers, x):
    return func.functional_call(network, (params, buffers), (x,)).pow(3).sum()


def _split(network):
    params = {name: p.detach() for name, p in network.named_parameters()}
    return params, {name: b.clone() for name, b in network.named_buffers()}


def _eager(network, x):
    """Gradients and buffers after one ordinary step, by PyTorch's layer."""
    twin = _network(0, norm=nn.BatchNorm1d, momentum=network[1].momentum)
    twin.load_state_dict(network.state_dict())
    twin(x).pow(3).sum().backward()
    return {n: p.grad for n, p in twin.named_parameters()}, dict(twin.named_buffers())


@pytest.mark.parametrize("momentum", [0.1, None])
def test_grad_updates_running_statistics_it_received_as_arguments(momentum):
    network, x = _network(0, momentum), _normal(6, 3)
    params, buffers = _split(network)
    expected_gradients, expected_buffers = _eager(network, x)
    gradients = func.grad(lambda p, b: _loss(network, p, b, x))(params, buffers)
    for name, expected in expected_gradients.items():
        torch.testing.assert_close(gradients[name], expected, rtol=1e-10, atol=1e-10)
    for name, expected in expected_buffers.items():
        torch.testing.assert_close(buffers[name], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_transforms_leave_captured_running_statistics_as_they_are(momentum):
    network, x = _network(0, momentum), _normal(6, 3)
    params, _ = _split(network)
    before = copy.deepcopy(network.state_dict())
    expected, _ = _eager(network, x)

    def loss(params):
        return func.functional_call(network, params, (x,)).pow(3).sum()

    gradients = func.grad(loss)(params)
    func.jvp(loss, (params,), (params,))
    func.hessian(loss)(params)
    torch.testing.assert_close(gradients, expected, rtol=1e-10, atol=1e-10)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("momentum", [0.1, None])
def test_vmap_over_inputs_leaves_unbatched_running_statistics_as_they_are(momentum):
    network, many = _network(0, momentum), _normal(5, 6, 3)
    before = copy.deepcopy(network.state_dict())
    outputs = func.vmap(network)(many)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])
    looped = torch.stack([copy.deepcopy(network)(x) for x in many])
    torch.testing.assert_close(outputs, looped, rtol=0, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("shared_input", [True, False], ids=["one_input", "input_each"])
def test_vmap_over_an_ensemble_equals_a_loop_over_its_members(shared_input, momentum):
    members = [_network(seed, momentum) for seed in range(3)]
    params, buffers = func.stack_module_state(members)
    params = {name: p.detach() for name, p in params.items()}
    x = _normal(6, 3) if shared_input else _normal(3, 6, 3)
    skeleton = _network(0, momentum)

    def gradients(params, buffers, x):
        return func.grad(lambda p, b: _loss(skeleton, p, b, x))(params, buffers)

    batched = func.vmap(gradients, in_dims=(0, 0, None if shared_input else 0))(params, buffers, x)
    for index, member in enumerate(members):
        expected, statistics = _eager(member, x if shared_input else x[index])
        for name, gradient in expected.items():
            torch.testing.assert_close(batched[name][index], gradient, rtol=1e-9, atol=1e-9)
        assert statistics["1.num_batches_tracked"] == 1


@pytest.mark.parametrize("momentum", [0.1, None])
def test_vmap_over_an_ensemble_updates_every_members_statistics(momentum):
    members, x = [_network(seed, momentum) for seed in range(3)], _normal(6, 3)
    params, buffers = func.stack_module_state(members)
    skeleton = _network(0, momentum)
    for _ in range(2):
        func.vmap(lambda p, b: func.functional_call(skeleton, (p, b), (x,)))(params, buffers)
    for index, member in enumerate(members):
        member(x)
        member(x)
        for name, expected in member.named_buffers():
            torch.testing.assert_close(buffers[name][index], expected, rtol=1e-12, atol=1e-12)


def test_grad_over_vmap_updates_batched_statistics():
    members, x = [_network(seed) for seed in range(2)], _normal(6, 3)
    params, buffers = func.stack_module_state(members)
    params = {name: p.detach() for name, p in params.items()}
    skeleton = _network(0)

    def total(params, buffers):
        return func.vmap(lambda p, b: _loss(skeleton, p, b, x))(params, buffers).sum()

    gradients = func.grad(total)(params, buffers)
    for index, member in enumerate(members):
        expected, statistics = _eager(member, x)
        for name, gradient in expected.items():
            torch.testing.assert_close(gradients[name][index], gradient, rtol=1e-9, atol=1e-9)
        for name, statistic in statistics.items():
            torch.testing.assert_close(buffers[name][index], statistic, rtol=1e-12, atol=1e-12)


def test_evaluation_mode_normalizes_by_running_statistics_in_a_transform():
    network, x = _network(0), _normal(6, 3)
    network(x)
    network.eval()
    _, pullback = func.vjp(network, x)
    (result,) = pullback(torch.ones(6, 2, dtype=torch.float64))
    leaf = x.clone().requires_grad_()
    network(leaf).sum().backward()
    torch.testing.assert_close(result, leaf.grad, rtol=1e-11, atol=1e-12)
