"""The Hessian of a chain, layer by layer, against finite differences and against the graph."""

import copy

import pytest
import torch
from tests.references.curvature import Reference
from tests.unit.curvature.chains.examples import ACTIVATIONS, CHAINS, chain
from tests.unit.curvature.networks import randomized
from torch import nn

from normscope.curvature import dense, kinds, operator, top_eigenvalue
from normscope.curvature.chains.jacobian import ChainHessian
from normscope.curvature.products import HessianProduct
from normscope.errors import StateError
from normscope.problem import MODES

TOLERANCE = 1e-11


def random_like(shape, seed=5):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def quartic(output, target):
    """A loss that no closed form knows, with a Hessian that depends on the output."""
    return ((output - target).square() + (output - target).pow(4) / 9).sum() / len(output)


def problem(name, samples=5):
    model, inputs = chain(name, samples)
    return model, (inputs, random_like(copy.deepcopy(model)(inputs).shape, 3))


def both_ways(monkeypatch, model, loss, data, mode="train", params=None):
    """The operator layer by layer, and that of the graph."""
    by_layers = operator(model, loss, data, "hessian", mode, params)
    assert isinstance(by_layers.first_batch(), ChainHessian)
    with monkeypatch.context() as patch:
        patch.setattr(kinds, "chain_jacobian", lambda *_, **__: None)
        by_graph = operator(model, loss, data, "hessian", mode, params)
        assert isinstance(by_graph.first_batch(), HessianProduct)
    return by_layers, by_graph


def assert_same(found, expected, tolerance=TOLERANCE):
    assert (found - expected).norm() <= tolerance * expected.norm().clamp(min=1e-2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CHAINS)
def test_chain_hessian_is_that_of_the_graph(name, mode, monkeypatch):
    model, data = problem(name)
    by_layers, by_graph = both_ways(monkeypatch, model, quartic, data, mode)
    vectors = random_like((by_layers.shape[0], 2))
    kept = vectors.clone()
    for _ in range(2):  # a product must not change what the next one needs
        for vector in vectors.T:
            assert_same(by_layers @ vector.contiguous(), by_graph @ vector.contiguous())
    assert torch.equal(vectors, kept)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["batch_norm", "norm_first", "conv1d", "conv2d", "conv3d"])
def test_chain_hessian_is_the_difference_of_gradients(name, mode):
    model, data = problem(name, 4)
    made = operator(model, quartic, data, "hessian", mode)
    assert isinstance(made.first_batch(), ChainHessian)
    expected = Reference(model, quartic, data, mode).matrix("hessian")
    found = dense(model, quartic, data, "hessian", mode)
    assert_same(found, expected, 1e-6)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "hardsigmoid"])
def test_chain_hessian_bends_with_its_activation(name, monkeypatch):
    model = nn.Sequential(nn.Linear(3, 6), copy.deepcopy(ACTIVATIONS[name]), nn.Linear(6, 2))
    data = (random_like((7, 3)), random_like((7, 2), 4))
    by_layers, by_graph = both_ways(monkeypatch, randomized(model), quartic, data)
    vector = random_like(by_layers.shape[0], 6)
    assert_same(by_layers @ vector, by_graph @ vector)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "params",
    [["0.weight"], ["0.bias"], ["1.weight"], ["1.bias"], ["3.bias"], ["1.bias", "4.weight"], ["4"]],
)
def test_chain_hessian_of_some_parameters_is_that_block_of_the_whole(params, mode, monkeypatch):
    model = nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Tanh(), nn.Conv1d(3, 2, 2), nn.BatchNorm1d(2)
    )
    data = (random_like((5, 2, 6)), random_like((5, 2, 4), 4))
    by_layers, by_graph = both_ways(monkeypatch, randomized(model), quartic, data, mode, params)
    vector = random_like(by_layers.shape[0], 6)
    assert_same(by_layers @ vector, by_graph @ vector)


def test_chain_hessian_bends_where_gamma_is_zero(monkeypatch):
    model, data = problem("batch_norm")
    with torch.no_grad():
        model[1].weight[:2] = 0
    by_layers, by_graph = both_ways(monkeypatch, model, quartic, data)
    vector = random_like(by_layers.shape[0], 6)
    assert_same(by_layers @ vector, by_graph @ vector)


def test_chain_hessian_of_a_loss_linear_in_the_output(monkeypatch):
    model, data = problem("wide")

    def linear(output, target):
        return (output * target).mean()

    by_layers, by_graph = both_ways(monkeypatch, model, linear, data)
    vector = random_like(by_layers.shape[0], 6)
    assert_same(by_layers @ vector, by_graph @ vector)


def test_chain_hessian_products_do_not_share_memory():
    model, data = problem("batch_norm")
    made = operator(model, quartic, data, "hessian")
    first = made @ random_like(made.shape[0])
    kept = first.clone()
    made @ random_like(made.shape[0], 8)
    assert torch.equal(first, kept)


def test_penalty_on_the_models_parameters_is_part_of_the_hessian():
    model, data = problem("two_linear")

    def penalized(output, target):
        return quartic(output, target) + 3 * sum(p.pow(2).sum() for p in model.parameters())

    made = operator(model, penalized, data, "hessian")
    assert isinstance(made.first_batch(), HessianProduct)
    plain = operator(model, quartic, data, "hessian")
    vector = random_like(made.shape[0])
    assert_same(made @ vector, plain @ vector + 6 * vector)


def test_loss_with_parameters_of_its_own_leaves_the_chain():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, output, target):
            return self.scale * quartic(output, target)

    model, data = problem("two_linear")
    loss = Scaled()
    made = operator(model, loss, data, "hessian")
    assert isinstance(made.first_batch(), HessianProduct)
    vector = random_like(made.shape[0])
    assert_same(made @ vector, 2 * (operator(model, quartic, data, "hessian") @ vector))
    assert loss.scale.grad is None


def test_activation_without_a_second_derivative_is_written_out_in_the_graph():
    class WrittenOut(nn.Module):
        def forward(self, x):
            return (x / 6 + 0.5).clamp(0, 1)

    data = (random_like((7, 3)), random_like((7, 2), 4))
    found = []
    for activation in (nn.Hardsigmoid(), WrittenOut()):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2)).double()
        found.append([dense(model, quartic, data, kind) for kind in ("ggn", "hessian")])
    for given, expected in zip(*found, strict=True):
        torch.testing.assert_close(given, expected, rtol=1e-7, atol=1e-9)


def test_loss_that_forgets_the_output_is_refused():
    model, data = problem("two_linear")
    with pytest.raises(StateError, match="must be differentiable in the model's output"):
        operator(model, lambda output, target: target.sum(), data, "hessian")


def test_random_loss_draws_the_same_numbers_for_gradient_and_hessian(monkeypatch):
    model, data = problem("two_linear")

    def noisy(output, target):
        return quartic(output * torch.rand(output.shape, dtype=output.dtype), target)

    by_layers, by_graph = both_ways(monkeypatch, model, noisy, data)
    vector = random_like(by_layers.shape[0])
    assert_same(by_layers @ vector, by_graph @ vector)


def test_loss_may_overwrite_the_output(monkeypatch):
    model, data = problem("two_linear")

    def in_place(output, target):
        return output.sub_(target).pow(4).mean()

    by_layers, by_graph = both_ways(monkeypatch, model, in_place, data)
    vector = random_like(by_layers.shape[0])
    assert_same(by_layers @ vector, by_graph @ vector)
    clean = operator(model, lambda output, target: (output - target).pow(4).mean(), data, "ggn")
    assert_same(operator(model, in_place, data, "ggn") @ vector, clean @ vector)


@pytest.mark.parametrize("name", ["batch_norm", "two_convolutions"])
def test_chain_hessian_leaves_model_and_randomness_as_they_were(name):
    model, data = problem(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    made = operator(model, quartic, data, "hessian")
    made @ random_like(made.shape[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("which", ["largest", "smallest", "both", "magnitude"])
def test_top_eigenvalues_of_a_chain_hessian_are_those_of_the_dense_one(which):
    layers = nn.Linear(5, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 3)
    model = randomized(nn.Sequential(*layers))
    data = (random_like((200, 5)), torch.arange(200) % 3)  # enough for a coarse start
    values = torch.linalg.eigvalsh(dense(model, "cross_entropy", data, "hessian"))
    found = top_eigenvalue(model, "cross_entropy", data, "hessian", which=which, tol=1e-8)
    expected = {
        "largest": values[-1:],
        "smallest": values[:1],
        "both": values[[-1, 0]],
        "magnitude": values[values.abs().argmax()].view(1),
    }[which]
    assert found.values == pytest.approx(expected.tolist(), rel=1e-7)


def test_chain_hessian_in_single_precision_agrees_with_double():
    model, data = problem("two_convolutions", 12)
    made = operator(model, quartic, data, "hessian")
    vector = random_like(made.shape[0])
    expected = made @ vector
    single = operator(model.float(), quartic, tuple(part.float() for part in data), "hessian")
    assert isinstance(single.first_batch(), ChainHessian)
    assert ((single @ vector.float()).double() - expected).norm() <= 1e-4 * expected.norm()
