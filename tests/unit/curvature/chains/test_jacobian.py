import copy

import pytest
import torch
from tests.unit.curvature.chains.examples import ACTIVATIONS, CHAINS, chain, dense_jacobian
from tests.unit.curvature.networks import randomized
from torch import nn

from normscope.curvature import kinds, operator, top_eigenvalue
from normscope.curvature.chains import ChainJacobian, chain_jacobian
from normscope.layers import NoisyBatchNorm1d
from normscope.layers.compiled import kernels
from normscope.problem import MODES, parameter_layout

TOLERANCE = 1e-10


def read(model, inputs, mode="train", params=None, point=None):
    return chain_jacobian(model, inputs, mode, parameter_layout(model, params), point)


def random_like(shape, seed=5):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(found, expected):
    assert (found - expected).norm() <= TOLERANCE * expected.norm().clamp(min=1e-3)


def assert_products(jacobian, dense, output):
    assert_same(jacobian.output, output)
    cotangent, vector = random_like(output.shape), random_like(dense.shape[1], 6)
    flat = cotangent.reshape(-1)
    kept = cotangent.clone(), vector.clone()
    for _ in range(2):  # a product must not change what the next one needs
        assert_same(jacobian.pull_back(cotangent), dense.T @ flat)
        assert_same(jacobian.push_forward(vector), (dense @ vector).view(output.shape))
        gram, pulled = jacobian.gram(cotangent)
        assert_same(gram, (dense @ (dense.T @ flat)).view(output.shape))
        assert pulled is None or (pulled - dense.T @ flat).norm() <= TOLERANCE * flat.norm()
        several = [cotangent, random_like(output.shape, 7), cotangent]
        rows = torch.stack([one.reshape(-1) for one in several]) @ dense
        assert_same(jacobian.inner_products(several), rows @ rows.T)
    assert torch.equal(cotangent, kept[0])
    assert torch.equal(vector, kept[1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CHAINS)
def test_chain_products_equal_the_dense_jacobian(name, mode):
    model, inputs = chain(name)
    assert_products(read(model, inputs, mode), *dense_jacobian(model, inputs, mode))


@pytest.mark.parametrize("name", ["wide", "two_linear", "sequence", "linear"])
def test_chain_products_do_not_share_memory(name):
    model, inputs = chain(name)
    jacobian = read(model, inputs)
    first = random_like(jacobian.output_shape)
    products = [jacobian.gram(first)[0], jacobian.push_forward(jacobian.pull_back(first))]
    kept = [product.clone() for product in products]
    jacobian.gram(random_like(jacobian.output_shape, 8))[0]
    jacobian.pull_back(random_like(jacobian.output_shape, 9))
    assert all(torch.equal(product, copied) for product, copied in zip(products, kept, strict=True))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_chain_products_through_an_activation_equal_the_dense_jacobian(name):
    model = nn.Sequential(nn.Linear(3, 6), copy.deepcopy(ACTIVATIONS[name]), nn.Linear(6, 2))
    model, inputs = randomized(model), random_like((7, 3))
    assert_products(read(model, inputs), *dense_jacobian(model, inputs, "train"))


@pytest.mark.parametrize("samples", [3, 7, 40, 600])
def test_chain_products_are_right_in_either_order_of_multiplication(samples):
    # few samples: rows times rows first; many: the gradient first; 600: symmetric blocks
    model, inputs = chain("wide", samples)
    jacobian = read(model, inputs)
    output = model(inputs)
    cotangent = random_like(output.shape)
    pulled = torch.autograd.grad(output, list(model.parameters()), cotangent)
    flat = torch.cat([gradient.reshape(-1) for gradient in pulled])
    assert_same(jacobian.pull_back(cotangent), flat)
    assert_same(jacobian.gram(cotangent)[0], jacobian.push_forward(flat))


def test_chain_symmetric_blocks_equal_the_plain_product():
    model = randomized(nn.Sequential(nn.Linear(800, 400), nn.Tanh(), nn.Linear(400, 1)))
    inputs = random_like((701, 800))  # not a multiple of the blocks
    jacobian = read(model, inputs, params=["0"])
    cotangent = random_like((701, 1))
    assert_same(jacobian.gram(cotangent)[0], jacobian.push_forward(jacobian.pull_back(cotangent)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "params",
    [
        ["0.weight"],
        ["0.bias"],
        ["1.weight"],
        ["1.bias"],
        ["1"],
        ["3.bias"],
        ["3.weight"],
        ["0.bias", "1.weight", "4.weight"],
        ["4"],
    ],
)
def test_chain_of_some_parameters_is_that_block_of_the_whole(params, mode):
    model = nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Tanh(), nn.Conv1d(3, 2, 2), nn.BatchNorm1d(2)
    )
    model, inputs = randomized(model), random_like((5, 2, 6))
    layout = parameter_layout(model, params)
    dense, output = dense_jacobian(model, inputs, mode, layout.names)
    assert_products(read(model, inputs, mode, params), dense, output)


def test_chain_of_linear_layers_knows_weights_and_biases_apart():
    model, inputs = chain("two_linear")
    for params in (["0.weight"], ["0.bias"], ["0.bias", "1.weight"], ["1.bias"]):
        names = parameter_layout(model, params).names
        dense, output = dense_jacobian(model, inputs, "train", names)
        assert_products(read(model, inputs, params=params), dense, output)


def test_chain_leaves_out_what_is_not_trainable():
    model, inputs = chain("batch_norm")
    model[0].requires_grad_(False)
    names = parameter_layout(model).names
    assert "0.weight" not in names
    dense, output = dense_jacobian(model, inputs, "train", names)
    assert_products(read(model, inputs), dense, output)


def test_chain_gives_zero_for_parameters_the_forward_does_not_use():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.idle, self.used = nn.Linear(2, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    model, inputs = randomized(Idle()), random_like((4, 3))
    assert_products(read(model, inputs), *dense_jacobian(model, inputs, "train"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["wide", "batch_norm", "two_convolutions"])
@pytest.mark.parametrize("samples", [2, 5])
def test_chain_meets_another_batch_as_the_dense_jacobians_do(name, samples, mode):
    model, inputs = chain(name, 9)
    part = inputs[:samples]
    whole, _ = dense_jacobian(model, inputs, mode)
    other, output = dense_jacobian(model, part, mode)
    cotangent = random_like(output.shape)
    found = read(model, inputs, mode).gram_with(read(model, part, mode), cotangent)
    assert_same(found.reshape(-1), whole @ (other.T @ cotangent.reshape(-1)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CHAINS)
def test_chain_pulls_back_the_adjoint_of_what_it_pushes_forward(name, mode):
    model, inputs = chain(name)
    jacobian = read(model, inputs, mode)
    cotangent = random_like(jacobian.output_shape)
    vector = random_like(parameter_layout(model).size, 6)
    left = (cotangent * jacobian.push_forward(vector)).sum()
    right = jacobian.pull_back(cotangent) @ vector
    assert abs(left - right) <= TOLERANCE * cotangent.norm() * vector.norm()


def test_chain_takes_values_from_a_point_other_than_the_models():
    model, inputs = chain("batch_norm")
    other = randomized(copy.deepcopy(model), 9)
    point = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    point = {name: tensor.detach() for name, tensor in point.items()}
    for mode in MODES:
        jacobian = read(model, inputs, mode, point=point)
        assert_products(jacobian, *dense_jacobian(other, inputs, mode))


def test_chain_knows_that_noise_is_off_in_eval_mode():
    model = nn.Sequential(nn.Linear(3, 4), NoisyBatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    model, inputs = randomized(model), random_like((5, 3))
    assert_products(read(model, inputs, "eval"), *dense_jacobian(model, inputs, "eval"))


@pytest.mark.parametrize("name", ["batch_norm", "two_convolutions", "max_pool", "straight"])
def test_chain_in_single_precision_agrees_with_double(name):
    model, inputs = chain(name, 12)
    dense, output = dense_jacobian(model, inputs, "train")
    jacobian = read(model.float(), inputs.float())
    cotangent = random_like(output.shape)
    expected = dense @ (dense.T @ cotangent.reshape(-1))
    found = jacobian.gram(cotangent.float())[0].reshape(-1).double()
    assert jacobian.dtype == torch.float32
    assert (found - expected).norm() <= 1e-4 * expected.norm()


def test_chain_works_inside_inference_mode():
    model, inputs = chain("straight")
    dense, output = dense_jacobian(model, inputs, "train")
    with torch.inference_mode():
        jacobian = read(model, inputs.clone())
        assert_same(jacobian.output, output)
        found = jacobian.gram(random_like(output.shape))[0].clone()
    assert_same(found.reshape(-1), dense @ (dense.T @ random_like(output.shape).reshape(-1)))


@pytest.mark.parametrize("kind", ["fisher", "ggn"])
@pytest.mark.parametrize("mode", MODES)
def test_operator_of_a_chain_is_that_of_the_graph(kind, mode, monkeypatch):
    model, inputs = chain("two_convolutions", 6)
    model = nn.Sequential(model, nn.Flatten())
    batches = [(inputs[:4], torch.arange(4)), (inputs[4:], torch.arange(2))]
    by_layers = operator(model, "cross_entropy", batches, kind, mode)
    vector = random_like(by_layers.shape[0])
    found = by_layers @ vector
    monkeypatch.setattr(kinds, "chain_jacobian", lambda *_, **__: None)
    by_graph = operator(model, "cross_entropy", batches, kind, mode)
    assert_same(found, by_graph @ vector)


@pytest.mark.parametrize("kind", ["fisher", "ggn"])
def test_top_eigenvalue_of_a_chain_is_that_of_the_graph(kind, monkeypatch):
    layers = nn.Linear(5, 80), nn.BatchNorm1d(80), nn.ReLU(), nn.Linear(80, 3)
    model = randomized(nn.Sequential(*layers))  # more parameters than outputs
    data = (random_like((256, 5)), torch.arange(256) % 3)  # enough for a coarse start
    calls = []

    def watch(name):
        method = getattr(ChainJacobian, name)

        def watched(*given):
            calls.append(name)
            return method(*given)

        monkeypatch.setattr(ChainJacobian, name, watched)

    watch("gram_with")
    watch("gram")
    by_layers = top_eigenvalue(model, "cross_entropy", data, kind, tol=1e-8)
    assert calls.count("gram_with") == 1  # from the part to the whole
    assert calls.count("gram") > 2
    monkeypatch.setattr(kinds, "chain_jacobian", lambda *_, **__: None)
    by_graph = top_eigenvalue(model, "cross_entropy", data, kind, tol=1e-8)
    assert by_layers.value == pytest.approx(by_graph.value, rel=1e-7)
    assert abs(by_layers.vectors[:, 0] @ by_graph.vectors[:, 0]) == pytest.approx(1, abs=1e-7)


def test_chain_meets_a_jacobian_of_another_kind():
    model, inputs = chain("batch_norm", 9)
    whole, part = read(model, inputs), read(model, inputs[:4])

    class Other:
        pull_back = staticmethod(part.pull_back)

    cotangent = random_like(part.output_shape)
    assert_same(whole.gram_with(Other(), cotangent), whole.gram_with(part, cotangent))


def test_eigenvector_is_lifted_from_products_without_another_pass(monkeypatch):
    layers = nn.Conv1d(2, 40, 3), nn.Tanh(), nn.Flatten(), nn.Linear(160, 3)
    model = randomized(nn.Sequential(*layers))
    data = (random_like((60, 2, 6)), torch.arange(60) % 3)
    passes, pull_back = [], ChainJacobian.pull_back
    monkeypatch.setattr(
        ChainJacobian, "pull_back", lambda *given: passes.append(1) or pull_back(*given)
    )
    found = top_eigenvalue(model, "cross_entropy", data)
    assert not passes
    vector = found.vectors[:, 0]
    product = operator(model, "cross_entropy", data) @ vector
    residual = (product - found.value * vector).norm() / found.value
    assert residual <= float(found.residuals[0]) * (1 + 1e-6) <= 1e-3


def strided_net():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.Tanh()),
        *(nn.Conv2d(16, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.Tanh()),
        *(nn.Flatten(), nn.LazyLinear(2)),
    )


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["fisher", "hessian"])
def test_products_of_images_in_single_precision_are_those_of_the_graph_in_double(
    kind, mode, compiled, monkeypatch
):
    if not compiled:
        monkeypatch.setattr(kernels, "_kernel", lambda _: None)
    model, x = strided_net(), torch.randn(6, 3, 17, 17)
    model(x)
    data = (x, torch.arange(6) % 2)
    by_layers = operator(model, "cross_entropy", data, kind, mode)
    vector = torch.randn(by_layers.shape[0])
    found = [by_layers @ vector for _ in range(2)]
    monkeypatch.setattr(kinds, "chain_jacobian", lambda *_, **__: None)
    data = (x.double(), data[1])
    expected = operator(model.double(), "cross_entropy", data, kind, mode) @ vector.double()
    for product in found:
        assert (product.double() - expected).norm() <= 1e-5 * expected.norm()


def test_jacobian_of_images_meets_another_batch():
    model, x = strided_net(), torch.randn(6, 3, 17, 17)
    model(x)
    layout = parameter_layout(model)
    whole, part = (chain_jacobian(model, rows, "train", layout) for rows in (x, x[:3]))
    cotangent = torch.randn(part.output_shape)
    expected = whole.push_forward(part.pull_back(cotangent))
    torch.testing.assert_close(whole.gram_with(part, cotangent), expected, rtol=1e-4, atol=1e-4)
