import pytest
import torch

from normscope.curvature.lanczos import Lanczos, wanted_positions
from normscope.errors import UnknownNameError


def symmetric(values, seed=0):
    """A matrix with these eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)
    q, _ = torch.linalg.qr(drawn)
    return q @ torch.diag(torch.as_tensor(values, dtype=torch.float64)) @ q.T


def started(matrix, block=1, limit=100, seed=1):
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(len(matrix), block, generator=generator, dtype=torch.float64)
    return Lanczos(lambda v: matrix @ v, start, limit, generator)


def advance(lanczos, steps, which="largest", keep=4):
    for _ in range(steps):
        if lanczos.exhausted:
            return
        if lanczos.full:
            lanczos.compress(which, keep)
        lanczos.step()


@pytest.mark.parametrize("which", ["largest", "smallest", "both", "magnitude"])
@pytest.mark.parametrize("block", [1, 3])
def test_lanczos_ends_with_the_exact_eigenvalues(which, block):
    values = torch.linspace(-3, 5, 12, dtype=torch.float64)
    matrix = symmetric(values)
    lanczos = started(matrix, block)
    advance(lanczos, 50)
    assert lanczos.exhausted
    assert lanczos.products == 12
    pairs = lanczos.ritz_pairs(which, 3)
    expected = {
        "largest": values.flip(0)[:3],
        "smallest": values[:3],
        "both": torch.cat([values.flip(0)[:3], values[:3]]),
        "magnitude": values[values.abs().argsort(descending=True)][:3],
    }[which]
    assert torch.allclose(pairs.values, expected, atol=1e-12)
    vectors = lanczos.vectors(pairs)
    assert torch.allclose(matrix @ vectors, vectors * expected, atol=1e-11)


@pytest.mark.parametrize("block", [1, 2, 4])
@pytest.mark.parametrize("limit", [10, 100])
def test_residuals_are_those_of_the_vectors_also_after_restarts(block, limit):
    matrix = symmetric([1.5**k for k in range(12)] + [float(k) for k in range(40)])
    lanczos = started(matrix, block, limit)
    for steps in (block, 3, 5, 9, 9):
        advance(lanczos, steps)
        pairs = lanczos.ritz_pairs("largest", 2)
        vectors = lanczos.vectors(pairs)
        true = (matrix @ vectors - vectors * pairs.values).norm(dim=0)
        assert torch.allclose(pairs.residuals, true, rtol=1e-6, atol=1e-10)
        assert lanczos.held <= limit + 1
        gram = vectors.T @ vectors
        assert torch.allclose(gram, torch.eye(len(gram), dtype=torch.float64), atol=1e-12)


def test_restarted_lanczos_converges():
    matrix = symmetric([10.0, 9.0, *torch.linspace(-5, 5, 60).tolist()])
    lanczos = started(matrix, 1, limit=8)
    advance(lanczos, 60)
    assert torch.allclose(
        lanczos.ritz_pairs("largest", 2).values, torch.tensor([10.0, 9.0]).double(), rtol=1e-8
    )


def test_block_finds_multiple_eigenvalues():
    matrix = symmetric([7.0, 7.0, 7.0, *torch.linspace(0, 5, 30).tolist()])
    lanczos = started(matrix, 3)
    advance(lanczos, 33)
    assert torch.allclose(lanczos.ritz_pairs("largest", 3).values, torch.full((3,), 7.0).double())


def test_invariant_start_is_left_by_a_random_vector():
    matrix = torch.diag(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
    start = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    lanczos = Lanczos(lambda v: matrix @ v, start, 10, torch.Generator().manual_seed(0))
    advance(lanczos, 3)
    assert float(lanczos.ritz_pairs("largest", 1).values) == pytest.approx(5.0)


def test_dependent_starts_are_replaced():
    matrix = symmetric([1.0, 2.0, 3.0, 4.0])
    start = torch.ones(4, 2, dtype=torch.float64)
    lanczos = Lanczos(lambda v: matrix @ v, start, 10, torch.Generator().manual_seed(0))
    advance(lanczos, 4)
    assert torch.allclose(
        lanczos.ritz_pairs("largest", 2).values, torch.tensor([4.0, 3.0]).double()
    )


def test_zero_matrix_has_zero_eigenvalues():
    lanczos = started(torch.zeros(5, 5, dtype=torch.float64), 2)
    advance(lanczos, 9)
    assert lanczos.ritz_pairs("largest", 5).values.tolist() == [0.0] * 5


def test_wanted_positions_refuses_unknown_ends():
    with pytest.raises(UnknownNameError, match="largest"):
        wanted_positions(torch.ones(2), "large", 1)
