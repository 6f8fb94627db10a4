"""Davidson's method: right whatever its model says, and sooner there if the model is right."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.curvature.davidson import Davidson
from normscope.curvature.lanczos import Lanczos
from normscope.curvature.mean_model import Consensus, MeanModel

SAMPLES = 30


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def same_for_all(outputs):
    consensus, like = Consensus(SAMPLES), torch.empty(0, dtype=torch.float64)
    return torch.stack([consensus.vector(row, like) for row in torch.eye(outputs)])


def agreeing(top, seed=0, bulk=0.2, mixed=0.05):
    """A positive matrix with a few large eigenvectors that are nearly the same for all samples."""
    outputs = len(top)
    size = SAMPLES * outputs
    q, _ = torch.linalg.qr(drawn(outputs, outputs, seed=seed))
    small = q @ torch.diag(torch.tensor(top, dtype=torch.float64)) @ q.T
    same = same_for_all(outputs)
    noise = drawn(size, size, seed=seed + 1)
    rest = noise @ noise.T * (bulk * max(top) / torch.linalg.eigvalsh(noise @ noise.T)[-1])
    turned, _ = torch.linalg.qr(torch.eye(size) + mixed * (noise - noise.T) / size**0.5)
    matrix = turned @ (same.T @ small @ same + rest) @ turned.T
    return (matrix + matrix.T) / 2


def model_of(matrix, noise=0.0, seed=5):
    same = same_for_all(len(matrix) // SAMPLES)
    small = same @ matrix @ same.T
    disturbance = drawn(*small.shape, seed=seed)
    small = small + noise * float(small.diagonal().max()) * (disturbance + disturbance.T)
    return MeanModel(small, Consensus(SAMPLES))


def davidson(matrix, model, block=1, limit=100, start=None):
    if start is None:
        start = drawn(len(matrix), block, seed=3)
    generator = torch.Generator().manual_seed(1)
    return Davidson(lambda v: matrix @ v, start, limit, generator, model, "largest")


def advance(basis, steps, keep=4):
    for _ in range(steps):
        if basis.full:
            basis.compress("largest", keep)
        basis.step()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), block=st.integers(1, 4), scale=st.floats(-2, 3))
def test_every_eigenvalue_is_found_whatever_the_model_says(seed, block, scale):
    size = 12
    matrix = drawn(size, size, seed=seed)
    matrix = matrix @ matrix.T
    wrong = MeanModel(scale * torch.diag(drawn(4, seed=seed).abs()), Consensus(3))
    start = drawn(size, block, seed=seed + 1)
    basis = davidson(matrix, wrong, start=start)
    while not basis.exhausted:
        basis.step()
    expected = torch.linalg.eigvalsh(matrix).flip(0)
    pairs = basis.ritz_pairs("largest", 3)
    assert torch.allclose(pairs.values, expected[:3], rtol=1e-9, atol=1e-9 * float(expected[0]))
    assert basis.asymmetry <= 1e-9 * float(expected[0])


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("limit", [20, 100])
def test_residuals_are_those_of_the_vectors_also_after_restarts(block, limit):
    matrix = agreeing([10.0, 9.5, 8.0, 7.0])
    basis = davidson(matrix, model_of(matrix), block, limit)
    for steps in (block, 4, 9, 12):
        advance(basis, steps)
        pairs = basis.ritz_pairs("largest", block)
        vectors = basis.vectors(pairs)
        true = (matrix @ vectors - vectors * pairs.values).norm(dim=0)
        assert torch.allclose(pairs.residuals, true, rtol=1e-6, atol=1e-10)
        assert basis.held <= limit + 1
        gram = vectors.T @ vectors
        assert torch.allclose(gram, torch.eye(block, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("block", [1, 3])
def test_estimates_after_a_restart_are_those_of_the_vectors(block):
    matrix = agreeing([10.0, 9.5, 8.0, 7.0])
    model = model_of(matrix)
    basis = davidson(matrix, model, block, limit=20)
    advance(basis, 12)
    before = basis.ritz_pairs("largest", block)
    basis.compress("largest", 6)
    after = basis.ritz_pairs("largest", block)
    assert basis.done == 6
    assert torch.allclose(after.values, before.values)
    assert torch.allclose(after.residuals, before.residuals, atol=1e-12)
    assert torch.allclose(after.errors, before.errors, rtol=1e-6, atol=1e-14)


def steps_to(basis, value, most=60):
    for step in range(1, most):
        basis.step()
        if float(basis.ritz_pairs("largest", 1).values) >= value:
            return step
    raise AssertionError("not found")


def test_model_with_some_noise_saves_products_of_lanczos():
    sooner = later = 0
    for seed in range(8):
        matrix = agreeing([10.0 - 0.3 * place for place in range(10)], seed, bulk=0.05)
        start = matrix @ drawn(len(matrix), 1, seed=seed)
        enough = (1 - 1e-3) * float(torch.linalg.eigvalsh(matrix)[-1])
        model = model_of(matrix, noise=0.01)
        plain = Lanczos(lambda v, m=matrix: m @ v, start, 100, torch.Generator().manual_seed(1))
        sooner += steps_to(davidson(matrix, model, start=start), enough)
        later += steps_to(plain, enough)
    assert sooner <= 0.75 * later, (sooner, later)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("top", [[10.0, 9.0, 8.0, 5.0], [10.0, 9.99, 9.98, 9.97]])
def test_estimated_errors_are_right_within_a_factor(top, seed):
    matrix = agreeing(top, seed)
    exact = float(torch.linalg.eigvalsh(matrix)[-1])
    basis = davidson(matrix, model_of(matrix, noise=0.002))
    sharper = 0
    for _ in range(14):
        basis.step()
        pairs = basis.ritz_pairs("largest", 1)
        value, error, residual = (float(x) for x in (pairs.values, pairs.errors, pairs.residuals))
        if residual <= 0.1 * value:  # perturbation theory is for small ones
            assert exact - value <= 3 * error + 1e-10
            sharper += error < 0.2 * residual
    assert sharper > 0  # or the estimate would be of no use


def test_products_that_are_not_symmetric_are_seen():
    matrix = agreeing([10.0, 9.0, 8.0, 5.0])
    basis = davidson(matrix + 0.1 * torch.triu(drawn(*matrix.shape)), model_of(matrix))
    advance(basis, 6)
    assert basis.asymmetry > 1e-3


def test_converged_vector_is_left_by_a_random_one():
    matrix = torch.diag(torch.arange(1.0, 13.0, dtype=torch.float64))
    start = torch.eye(12, dtype=torch.float64)[:, :1]  # an eigenvector, of the smallest
    basis = davidson(
        matrix, MeanModel(torch.eye(4, dtype=torch.float64), Consensus(3)), start=start
    )
    for _ in range(12):
        basis.step()
    assert float(basis.ritz_pairs("largest", 1).values) == pytest.approx(12.0)
