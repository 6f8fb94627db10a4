"""Closed forms against numerical integration and known values."""

import numpy as np
import pytest
from scipy import integrate
from scipy.stats import multivariate_normal

from normscope.meanfield.integrals import both_below, rectified_mean, rectified_product


def density(x, y, c):
    return multivariate_normal([0, 0], [[1, c], [c, 1]]).pdf([x, y])


@pytest.mark.parametrize(
    ("h", "k", "c"),
    [(0.3, 0.7, 0.4), (-1.0, 0.5, -0.8), (0.0, -0.3, 0.9), (2.0, 0.0, 0.2), (-0.5, -0.5, 0.99)],
)
def test_both_below_is_the_bivariate_distribution(h, k, c):
    expected = multivariate_normal([0, 0], [[1, c], [c, 1]]).cdf([h, k])
    assert float(both_below(h, k, c)) == pytest.approx(expected, abs=2e-6)
    # and to more digits by conditioning on the first variable
    from scipy.special import ndtr

    def inner(x):
        return np.exp(-x * x / 2) / np.sqrt(2 * np.pi) * ndtr((k - c * x) / np.sqrt(1 - c * c))

    exact = integrate.quad(inner, -12, h, epsabs=1e-13, epsrel=1e-12, points=[min(h, k / c)])[0]
    assert float(both_below(h, k, c)) == pytest.approx(exact, abs=1e-10)


@pytest.mark.parametrize("c", [-1.0, -0.3, 0.0, 0.5, 1.0])
def test_both_below_at_the_origin_is_the_quadrant(c):
    assert float(both_below(0.0, 0.0, c)) == pytest.approx(0.25 + np.arcsin(c) / (2 * np.pi))


def test_rectified_mean_without_spread_is_the_positive_part():
    found = rectified_mean(np.array([-2.0, 0.0, 3.0]), np.zeros(3))
    assert found == pytest.approx([0.0, 0.0, 3.0])


@pytest.mark.parametrize(
    ("m1", "m2", "s1", "s2", "c"),
    [(0.3, -0.5, 1.3, 0.8, 0.6), (-1.0, 1.0, 1.0, 2.0, -0.7), (0.0, 0.4, 1.0, 1.0, 0.0)],
)
def test_rectified_product_agrees_with_integration(m1, m2, s1, s2, c):
    def inner(x):
        # the second variable given the first, whose positive part has a mean in closed form
        mean, std = m2 + s2 * c * x, s2 * np.sqrt(1 - c * c)
        value = (m1 + s1 * x) * rectified_mean(np.array(mean), np.array(std))
        return float(value) * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)

    exact = integrate.quad(inner, -m1 / s1, 12, epsabs=1e-13, epsrel=1e-12)[0]
    found = rectified_product((np.array(m1), np.array(m2)), (np.array(s1), np.array(s2)), c)
    assert float(found) == pytest.approx(exact, abs=1e-10)


def test_rectified_product_of_one_variable_is_its_second_moment():
    for mean in (0.0, 0.7, -1.2):
        pair = np.array([mean, mean])
        ones = np.ones(2)
        found = rectified_product((pair, pair), (ones, ones), np.array([1.0, 1.0 - 1e-13]))
        exact = integrate.quad(
            lambda z, m=mean: (m + z) ** 2 * np.exp(-z * z / 2) / np.sqrt(2 * np.pi), -mean, 12
        )[0]
        assert found == pytest.approx([exact, exact], rel=1e-6)


def test_rectified_product_with_tiny_means_joins_the_one_without():
    zero, tiny, one = np.zeros(1), np.full(1, 1e-9), np.ones(1)
    for c in (-0.9, 0.0, 0.9):
        with_mean = rectified_product((tiny, tiny), (one, one), np.array([c]))
        without = rectified_product((zero, zero), (one, one), np.array([c]))
        assert with_mean == pytest.approx(without, abs=1e-8)
