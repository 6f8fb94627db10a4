"""The model of mean gradients: what it makes of a residual, and where it says nothing."""

import pytest
import torch

from normscope.curvature.mean_model import Consensus, MeanModel

SAMPLES = 5
LIKE = torch.empty(0, dtype=torch.float64)


def model_with(*values, scale=1.0):
    """A diagonal model, and the matrix that it is of, times a scale."""
    consensus = Consensus(SAMPLES)
    small = torch.diag(torch.tensor(values, dtype=torch.float64))
    same = torch.stack([consensus.vector(row, LIKE) for row in torch.eye(len(values))])
    return MeanModel(small, consensus), scale * same.T @ small @ same, same


def correction_at(model, matrix, vector):
    vector = vector / vector.norm()
    image = matrix @ vector
    wanted = model.consensus.means(vector).unsqueeze(1)
    return model.correction(float(vector @ image), vector, image, wanted), vector, image


def test_right_model_leads_to_the_eigenvector_in_one_step():
    model, matrix, same = model_with(10.0, 9.0, 4.0, 2.0)
    start = same[0] + 0.02 * same[1] - 0.03 * same[2]
    correction, vector, _ = correction_at(model, matrix, start)
    plane = torch.linalg.qr(torch.stack([vector, correction.direction], 1))[0]
    best = torch.linalg.eigvalsh(plane.T @ matrix @ plane)[-1]
    shortfall = 10.0 - float(vector @ matrix @ vector)
    assert 10.0 - float(best) <= 1e-4 * shortfall
    assert correction.error == pytest.approx(
        shortfall, rel=0.3
    )  # the gaps are doubted by a hundredth


def test_error_among_unresolved_eigenvalues_is_that_of_evenly_spaced_ones():
    model, matrix, same = model_with(10.0, 9.95, 9.9)
    correction, vector, image = correction_at(model, matrix, same[0] + 0.1 * same[1])
    residual = float((image - (vector @ image) * vector).norm())
    assert correction.residual == pytest.approx(residual)
    assert correction.error == pytest.approx(3**0.5 * residual, rel=1e-9)


@pytest.mark.parametrize("scale", [0.8, 1.25])
def test_part_that_differs_from_the_whole_is_doubted(scale):
    vector_parts = 1.0, 0.005
    errors = []
    for factor in (1.0, scale):
        model, matrix, same = model_with(10.0, 9.0, 4.0, scale=factor)
        start = vector_parts[0] * same[0] + vector_parts[1] * same[1]
        correction, vector, image = correction_at(model, matrix, start)
        errors.append(correction.error / float(vector @ image))
    assert errors[1] > 5 * errors[0]  # the residual, where a gap of a tenth was believed


def test_rest_counts_with_the_square_of_its_length():
    model, matrix, same = model_with(10.0, 5.0)
    lonely = torch.zeros(SAMPLES * 2, dtype=torch.float64)
    lonely[0], lonely[2] = 1.0, -1.0  # two samples that do not agree
    start = same[0] + 0.05 * lonely
    correction, vector, image = correction_at(model, matrix, start)
    shortfall = 10.0 - float(vector @ image)
    assert shortfall <= correction.error <= 2 * shortfall
    assert float(correction.direction @ same[0]) == pytest.approx(0.0, abs=0.02)


def test_vector_without_agreement_has_the_error_of_its_residual():
    model, _, _ = model_with(10.0, 5.0)
    matrix = torch.diag(torch.arange(10.0, 0.0, -1.0, dtype=torch.float64))
    vector = torch.zeros(10, dtype=torch.float64)
    vector[0], vector[1] = 1.0, 0.1
    correction, _, _ = correction_at(model, matrix, vector)
    assert correction.error == pytest.approx(3**0.5 * correction.residual)


@pytest.mark.parametrize("values", [(0.0, 0.0), (-1.0, -2.0)])
def test_model_that_says_nothing_gives_the_residual(values):
    model, _, _ = model_with(*values)
    matrix = torch.diag(torch.arange(10.0, 0.0, -1.0, dtype=torch.float64))
    correction, vector, image = correction_at(model, matrix, torch.ones(10, dtype=torch.float64))
    assert torch.allclose(correction.direction, image - (vector @ image) * vector)


def test_wanted_vectors_as_many_as_outputs_leave_the_residual_alone():
    model, matrix, same = model_with(10.0, 5.0)
    vector = same[0] + 0.1 * same[1]
    vector = vector / vector.norm()
    image = matrix @ vector
    value = float(vector @ image)
    correction = model.correction(value, vector, image, torch.eye(2, dtype=torch.float64))
    assert torch.allclose(correction.direction, (image - value * vector) / value)
