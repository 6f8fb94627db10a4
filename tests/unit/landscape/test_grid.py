"""Refinement beside values that are not finite, and the ends of axes."""

import numpy as np
import pytest

from normscope.landscape.grid import covering_ends, fill_grid


def measured_on(values):
    return lambda indices, level: values[tuple(np.array(indices).T)]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_refinement_beside_values_that_are_not_finite(bad, dimensions):
    x = np.linspace(-1, 1, 65)
    grid = np.meshgrid(*[x] * dimensions, indexing="ij")
    values = sum(each**3 + 0.3 * each**2 for each in grid) + 5
    values[(grid[0] > 0.6) & (grid[-1] > 0.2)] = bad
    found = fill_grid(values.shape, measured_on(values), 1e-6)
    np.testing.assert_array_equal(np.isfinite(found.loss), np.isfinite(values))
    finite = np.isfinite(values)
    np.testing.assert_allclose(found.loss[finite], values[finite], rtol=1e-9)
    # the finite part is a cubic, so nearly all of it is interpolated
    assert found.measured[finite].mean() < 0.5


def test_values_that_are_not_finite_from_the_second_level_on_are_followed():
    x = np.linspace(-1, 1, 65)
    values = x**2 + 1
    values[(x > 0.7) & (x < 0.85)] = np.inf  # one point of the second level
    found = fill_grid(values.shape, measured_on(values), 0.01)
    np.testing.assert_array_equal(np.isinf(found.loss), np.isinf(values))


@pytest.mark.parametrize("count", [3, 4, 5, 9, 25])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 0.1), (-1.0, 7.0)])
def test_covering_ends_cover_the_range_with_zero_on_the_grid(low, high, count):
    start, end = covering_ends(low, high, count)
    pad = 0.25 * (high - low)
    assert start <= low - pad + 1e-12
    assert end >= high + pad - 1e-12
    assert np.abs(np.linspace(start, end, count)).min() < 1e-9
