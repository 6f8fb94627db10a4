"""Davidson's method converges with any model and saves products with a right one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.curvature.davidson import Consensus, Davidson, MeanModel
from normscope.curvature.lanczos import Lanczos

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


def test_converged_vector_is_left_by_a_random_one():
    matrix = torch.diag(torch.arange(1.0, 13.0, dtype=torch.float64))
    start = torch.eye(12, dtype=torch.float64)[:, :1]  # an eigenvector, of the smallest
    basis = davidson(
        matrix, MeanModel(torch.eye(4, dtype=torch.float64), Consensus(3)), start=start
    )
    for _ in range(12):
        basis.step()
    assert float(basis.ritz_pairs("largest", 1).values) == pytest.approx(12.0)


# The model of mean gradients

FEW = 5
LIKE = torch.empty(0, dtype=torch.float64)


def model_with(*values, scale=1.0):
    """A diagonal model, and the matrix that it is of, times a scale."""
    consensus = Consensus(FEW)
    small = torch.diag(torch.tensor(values, dtype=torch.float64))
    same = torch.stack([consensus.vector(row, LIKE) for row in torch.eye(len(values))])
    return MeanModel(small, consensus), scale * same.T @ small @ same, same


def estimated(model, matrix, vector):
    """The estimate at a vector, that of length one, and the residual."""
    vector = vector / vector.norm()
    image = matrix @ vector
    value = float(vector @ image)
    residual = image - value * vector
    means, moved = (model.frame.means(part) for part in (vector, image))
    found = model.estimate(value, float(residual.norm()), means, moved, means.unsqueeze(1))
    return found, vector, residual


def direction_of(model, estimate, residual):
    return residual + model.frame.vector(estimate.weights, residual)


def test_right_model_leads_to_the_eigenvector_in_one_step():
    model, matrix, same = model_with(10.0, 9.0, 4.0, 2.0)
    found, vector, residual = estimated(model, matrix, same[0] + 0.02 * same[1] - 0.03 * same[2])
    direction = direction_of(model, found, residual)
    plane = torch.linalg.qr(torch.stack([vector, direction], 1))[0]
    best = torch.linalg.eigvalsh(plane.T @ matrix @ plane)[-1]
    shortfall = 10.0 - float(vector @ matrix @ vector)
    assert 10.0 - float(best) <= 1e-4 * shortfall
    assert found.error == pytest.approx(shortfall, rel=0.3)  # gaps are doubted by a hundredth


def test_error_among_unresolved_eigenvalues_is_that_of_evenly_spaced_ones():
    model, matrix, same = model_with(10.0, 9.95, 9.9)
    found, _, residual = estimated(model, matrix, same[0] + 0.1 * same[1])
    assert found.error == pytest.approx(3**0.5 * float(residual.norm()), rel=1e-6)


def test_evenly_spaced_eigenvalues_have_that_error_in_their_middle():
    values = torch.linspace(9.9, 10.1, 400, dtype=torch.float64)
    spread = values.std(correction=0)  # the residual of an even mixture of all their vectors
    assert float((values[-1] - values.mean()) / spread) == pytest.approx(3**0.5, rel=1e-2)


@pytest.mark.parametrize("scale", [0.8, 1.25])
def test_part_that_differs_from_the_whole_is_doubted(scale):
    errors = []
    for factor in (1.0, scale):
        model, matrix, same = model_with(10.0, 9.0, 4.0, scale=factor)
        found, vector, _ = estimated(model, matrix, same[0] + 0.005 * same[1])
        errors.append(found.error / float(vector @ matrix @ vector))
    assert errors[1] > 5 * errors[0]  # the residual, where a gap of a tenth was believed


def test_rest_counts_with_the_square_of_its_length():
    model, matrix, same = model_with(10.0, 5.0)
    lonely = torch.zeros(FEW * 2, dtype=torch.float64)
    lonely[0], lonely[2] = 1.0, -1.0  # two samples that do not agree
    found, vector, _ = estimated(model, matrix, same[0] + 0.05 * lonely)
    shortfall = 10.0 - float(vector @ matrix @ vector)
    assert shortfall <= found.error <= 2 * shortfall
    assert torch.allclose(found.weights, torch.zeros(2, dtype=torch.float64), atol=1e-12)


def test_vector_without_agreement_has_the_error_of_its_residual():
    model, _, _ = model_with(10.0, 5.0)
    matrix = torch.diag(torch.arange(10.0, 0.0, -1.0, dtype=torch.float64))
    vector = torch.zeros(10, dtype=torch.float64)
    vector[0], vector[1] = 1.0, 0.1
    found, _, residual = estimated(model, matrix, vector)
    assert found.error == pytest.approx(3**0.5 * float(residual.norm()))


@pytest.mark.parametrize("values", [(0.0, 0.0), (-1.0, -2.0)])
def test_model_that_says_nothing_leaves_the_residual_as_it_is(values):
    model, _, _ = model_with(*values)
    matrix = torch.diag(torch.arange(10.0, 0.0, -1.0, dtype=torch.float64))
    found, _, residual = estimated(model, matrix, torch.ones(10, dtype=torch.float64))
    assert torch.equal(direction_of(model, found, residual), residual)


def test_wanted_vectors_as_many_as_outputs_leave_the_residual_as_it_is():
    model, _, _ = model_with(10.0, 5.0)
    means, moved = torch.tensor([[1.0, 0.1], [9.0, 1.5]], dtype=torch.float64)
    found = model.estimate(9.0, 0.3, means, moved, torch.eye(2, dtype=torch.float64))
    assert torch.equal(found.weights, torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize(("scale", "doubted"), [(2.0, True), (0.5, True), (0.995, False)])
def test_doubt_grows_with_what_the_part_has_too_much_or_too_little(scale, doubted):
    # a gap of 0.45: three quarters of |1/s - 1| are 0.375, 0.75 and 0.004
    model, matrix, same = model_with(10.0, 5.5, scale=scale)
    found, vector, residual = estimated(model, matrix, same[0] + 0.01 * same[1])
    value, length = float(vector @ matrix @ vector), float(residual.norm())
    expected = {
        2.0: length**2 / ((0.45 - 0.375) * value),  # still resolved
        0.5: 3**0.5 * length,  # closed
        0.995: length**2 / ((0.45 - 0.01) * value),
    }[scale]
    assert found.error == pytest.approx(expected, rel=2e-2)
    assert (found.error > 3 * length**2 / (0.45 * value)) == doubted


@pytest.mark.parametrize(("coupling", "resolved"), [(0.4, True), (2.5, False)])
def test_gap_smaller_than_the_residual_is_not_resolved(coupling, resolved):
    model, matrix, same = model_with(10.0, 8.0, 8.0)
    coupled = coupling * (torch.outer(same[0], same[1]) + torch.outer(same[1], same[0]))
    found, _, residual = estimated(model, matrix + coupled, same[0])
    assert float(residual.norm()) == pytest.approx(coupling)
    gap = 10 - 8 - 0.01 * 10  # which the least doubt leaves
    expected = coupling**2 / gap if resolved else 3**0.5 * coupling
    assert found.error == pytest.approx(expected, rel=1e-6)


def test_negative_value_leaves_the_residual_as_it_is():
    model, matrix, same = model_with(10.0, 5.0)
    found, _, residual = estimated(model, -matrix, same[0] + 0.1 * same[1])
    assert torch.equal(found.weights, torch.zeros(2, dtype=torch.float64))
    assert found.error == pytest.approx(3**0.5 * float(residual.norm()))


def test_directions_of_all_wanted_vectors_are_left_out():
    model, _, _ = model_with(10.0, 9.0, 5.0)
    means = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    moved = torch.tensor([10.0, 0.3, 0.3], dtype=torch.float64)
    both = torch.eye(3, dtype=torch.float64)[:, :2]
    found = model.estimate(10.0, 0.5, means, moved, both)
    assert float(found.weights[1]) == 0.0
    assert float(found.weights[2]) == pytest.approx(0.3 * (10 / 5 - 1))


@pytest.mark.parametrize(("second", "divisor"), [(9.99, 0.2), (9.0, 1.0)])
def test_correction_divides_by_no_less_than_a_fiftieth(second, divisor):
    model, _, _ = model_with(10.0, second)
    means = torch.tensor([1.0, 0.0], dtype=torch.float64)
    moved = torch.tensor([10.0, 0.1], dtype=torch.float64)
    found = model.estimate(10.0, 0.1, means, moved, means.unsqueeze(1))
    assert float(found.weights[1]) == pytest.approx(0.1 * (10 / divisor - 1))


def test_correction_divides_by_no_less_than_half_the_doubt():
    model, _, _ = model_with(10.0, 9.9)
    means = torch.tensor([1.0, 0.0], dtype=torch.float64)
    moved = torch.tensor([8.0, 0.1], dtype=torch.float64)  # s = 0.8: a doubt of 0.1875
    found = model.estimate(8.0, 0.1, means, moved, means.unsqueeze(1))
    assert float(found.weights[1]) == pytest.approx(0.1 * (2 / 0.1875 - 1))
