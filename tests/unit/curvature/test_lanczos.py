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


def among_close_eigenvalues(width, share, seed):
    """Ten eigenvalues close together far above the rest; the top one has a share of the start."""
    top = 100 * (1 - width * torch.linspace(0, 1, 10, dtype=torch.float64))
    values = torch.cat([torch.linspace(0, 4, 190, dtype=torch.float64), top.flip(0)])
    generator = torch.Generator().manual_seed(seed)
    start = 0.003 * torch.randn(200, generator=generator, dtype=torch.float64)
    start[-10:] = torch.randn(10, generator=generator, dtype=torch.float64)
    start[-1] = 0
    start = start / start.norm() * (1 - share) ** 0.5
    start[-1] = share**0.5
    return Lanczos(lambda vector: values * vector, start.unsqueeze(1), 100, generator)


@pytest.mark.parametrize("seed", range(5))
def test_one_of_many_close_eigenvalues_is_not_taken_for_an_isolated_one(seed):
    lanczos = among_close_eigenvalues(0.01, 0.1, seed)
    advance(lanczos, 2)
    pairs = lanczos.ritz_pairs("largest", 2)
    assert pairs.values[1] < 10  # none of the other nine is seen yet
    assert float(pairs.errors[0]) == 2 * float(pairs.residuals[0])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("width", [0.002, 0.03, 0.3])
def test_estimated_errors_are_right_within_a_factor_from_a_fair_start(width, seed):
    lanczos = among_close_eigenvalues(width, 0.7, seed)
    sharper = 0
    for _ in range(15):
        lanczos.step()
        pairs = lanczos.ritz_pairs("largest", 1)
        assert 100 - float(pairs.values) <= 3 * float(pairs.errors) + 1e-10
        sharper += float(pairs.errors) < 0.2 * float(pairs.residuals)
    assert sharper > 0  # or the estimate would be of no use


def products_until_known(seed):
    """Return after how many products the error of a value is estimated as 1e-3, and all errors.

    The spectrum is like that of a transformer's Hessian: a band, and a few eigenvalues below the
    top one, which make its last digits come slowly.
    """
    band = torch.linspace(-0.7, 0.8, 394, dtype=torch.float64)
    near = torch.tensor([0.82, 0.88, 0.92, 0.95, 0.97, 1.0], dtype=torch.float64)
    values, generator = torch.cat([band, near]), torch.Generator().manual_seed(seed)
    start = 0.02 * torch.randn(400, generator=generator, dtype=torch.float64)
    start[-6:] = 0.2 * torch.randn(6, generator=generator, dtype=torch.float64)
    start[-1] = 1
    lanczos = Lanczos(lambda vector: values * vector, start.unsqueeze(1), 100, generator)
    errors = []
    for _ in range(20):
        lanczos.step()
        pairs = lanczos.ritz_pairs("largest", 1)
        errors.append((float(pairs.errors[0]), 1 - float(pairs.values[0])))
    return next(step for step, (error, _) in enumerate(errors, 1) if error <= 1e-3), errors


def test_value_that_has_settled_is_known_before_its_neighbours():
    products, errors = zip(*(products_until_known(seed) for seed in range(5)), strict=True)
    assert sum(products) <= 50  # from the gaps to the neighbours alone 61
    assert all(true <= estimated for each in errors for estimated, true in each)
