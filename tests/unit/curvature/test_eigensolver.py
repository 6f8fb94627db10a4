import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.curvature.eigensolver import Request, search, start_block
from normscope.curvature.spaces import SearchSpace
from normscope.progress import ignore_progress

TOLERANCE = 1e-3


class DenseSpace(SearchSpace):
    """The vectors that a matrix multiplies."""

    embedding_cost = 0.0

    def __init__(self, matrix):
        super().__init__(len(matrix), matrix.dtype, matrix.device)
        self.matrix = matrix

    def times(self, vector):
        return self.matrix @ vector

    def embed(self, vector):
        return vector

    def lift(self, vector):
        return vector / vector.norm()

    def residual_factor(self, values, norm):
        return torch.ones_like(values)


def symmetric(values, seed=0):
    """A matrix with these eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)
    q, _ = torch.linalg.qr(drawn)
    return q @ torch.diag(torch.as_tensor(values, dtype=torch.float64)) @ q.T


def found_in(matrix, which, products, count=1, progress=ignore_progress):
    space = DenseSpace(matrix)
    request = Request(count, which, TOLERANCE, products, seed=0, progress=progress)
    return search(space, start_block(space, None, request), request)


@pytest.mark.parametrize("count", [1, 3])
def test_search_that_runs_out_of_products_has_converged_if_it_is_within_the_tolerance(count):
    matrix = symmetric(torch.linspace(0.0, 1.0, 200, dtype=torch.float64))
    seen = []
    assert found_in(matrix, "largest", 200, count, seen.append).converged
    first = next(at.done for at in seen[count:] if at.residual <= TOLERANCE)
    assert first < len(seen)  # with more products to spend it went on, to a part of the tolerance
    before, there = (found_in(matrix, "largest", most, count) for most in (first - 1, first))
    assert not before.converged
    assert float(before.residuals.max()) > TOLERANCE
    assert there.converged
    assert TOLERANCE / 2 < float(there.residuals.max()) <= TOLERANCE


def test_fewer_eigenvalues_than_wanted_are_no_convergence():
    found = found_in(torch.eye(9, dtype=torch.float64), "largest", 2, count=3)
    assert float(found.residuals.max()) <= TOLERANCE
    assert not found.converged


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.1, 1.0), min_size=1, max_size=12),
    st.integers(1, 20),
    st.integers(0, 1000),
)
def test_null_space_is_found_and_its_residual_is_true(values, zeros, seed):
    matrix = symmetric([0.0] * zeros + values, seed)
    found = found_in(matrix, "smallest", 120)
    assert found.converged
    # what rounding resolves: 32 units of it, and those of the products themselves
    resolved = 64 * torch.finfo(torch.float64).eps
    assert abs(float(found.values[0])) <= resolved
    vector = found.vectors[:, 0]
    assert float((matrix @ vector).norm()) <= resolved


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.1, 1.0), min_size=1, max_size=12),
    st.floats(-10, -2).map(lambda power: 10**power),
    st.integers(0, 1000),
)
def test_tiny_eigenvalue_is_not_taken_for_zero(values, tiny, seed):
    found = found_in(symmetric([tiny, *values], seed), "smallest", 120)
    assert found.converged
    assert float(found.values[0]) == pytest.approx(tiny, rel=TOLERANCE)


@pytest.mark.parametrize(("spent", "each", "left"), [(4.0, 1.0, 6), (4.0, 4.0, 1), (20.0, 1.0, 1)])
def test_remaining_products_are_those_not_spent_and_at_least_one(spent, each, left):
    request = Request(1, "largest", TOLERANCE, 10, seed=0)
    assert request.with_fewer_products(spent, each).max_products == left
