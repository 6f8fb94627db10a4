"""The maximum of a quadratic form on a ball, against a dense search."""

import pytest
import torch

from normscope.theorems.theorem_c1 import ball_maximum


def symmetric(size, seed, shift=0.0):
    matrix = torch.randn(
        size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return (matrix + matrix.T) / 2 + shift * torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shift", [-3.0, 0.0, 3.0])
def test_maximum_is_attained_and_not_exceeded(seed, shift):
    matrix = symmetric(3, seed, shift)
    diameter = torch.randn(3, generator=torch.Generator().manual_seed(seed + 100)).double()
    found = ball_maximum(matrix, diameter)
    point = found.point
    assert (point - diameter / 2).norm() <= diameter.norm() / 2 * (1 + 1e-9)
    assert float(point @ matrix @ point) == pytest.approx(found.value, rel=1e-9, abs=1e-12)
    directions = torch.randn(20000, 3, generator=torch.Generator().manual_seed(1)).double()
    surface = diameter / 2 + diameter.norm() / 2 * directions / directions.norm(dim=1, keepdim=True)
    largest = float(((surface @ matrix) * surface).sum(1).max())
    # the densest search of the surface comes close from below
    assert max(0.0, largest) <= found.value + 1e-12
    assert max(0.0, largest) >= found.value - 0.01 * float(diameter.square().sum() * matrix.norm())


def test_negative_form_is_largest_at_the_origin():
    found = ball_maximum(-torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    assert found.value == 0
    assert not found.point.any()


def test_hard_case_fills_the_top_direction():
    """The diameter has no part along the top eigenvector, and is not long enough to need none."""
    matrix = torch.diag(torch.tensor([0.1, 2.0], dtype=torch.float64))
    found = ball_maximum(matrix, torch.tensor([2.0, 0.0], dtype=torch.float64))
    angles = torch.linspace(0, 6.3, 100001, dtype=torch.float64)
    surface = torch.stack([1 + angles.cos(), angles.sin()], 1)
    expected = float(((surface @ matrix) * surface).sum(1).max())
    assert found.value == pytest.approx(expected, rel=1e-8)
    assert float(found.point @ matrix @ found.point) == pytest.approx(expected, rel=1e-8)


def test_eigenvector_is_its_own_maximizer():
    matrix = torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64))
    found = ball_maximum(matrix, torch.tensor([0.0, 2.0], dtype=torch.float64))
    assert found.value == pytest.approx(12.0)


def test_empty_ball():
    assert ball_maximum(torch.eye(2), torch.zeros(2)).value == 0
