"""The bound of a hidden unit, computed a second time by another way. Float64."""

import numpy as np
import pytest
from scipy.optimize import brentq

from normscope.decoupled import (
    HiddenUnits,
    Options,
    margin_loss,
    ordinary_least_squares,
    train_units,
)
from normscope.experiments.kohler2018.problems import moments


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bound_of_a_hidden_unit_is_the_corrected_right_side(seed):
    """(1 - mu/L)^(2t) C gap_0 along the whole path, from moments and plain recursions alone.

    The gradient stays a hundredth below it, so that the inequality alone would not tell a right
    side from one that is too small.
    """
    given = moments(2, 5.0, 0.4, np.random.default_rng(seed))
    design = given.quadrature(40)
    units = HiddenUnits(design, margin_loss("logistic"), np.zeros((1, 2)), np.ones(1))
    starts = -design.mean[None]
    trained = train_units(
        units, starts, Options(), unit_steps=12, max_sweeps=1, tol=0.0, refit=False
    )
    (path,) = trained.first
    smallest, largest = np.linalg.eigvalsh(given.second)[[0, -1]]
    # for Gaussian z the direction goes the way of least squares
    points = ordinary_least_squares(S=given.second, u=given.mean, steps=13).w
    gap = given.quotient - (given.mean @ points[0]) ** 2 / (points[0] @ given.second @ points[0])
    curvature = 0.25 + 4 / (3 * np.sqrt(3))
    expected = []
    for step, point in enumerate(points):
        margins = design.inputs @ point / np.sqrt(point @ given.second @ point)

        def slope(length, margins=margins):
            tanh = np.tanh(length * margins)
            return design.weights @ (margins * (1 - tanh**2) / (1 + np.exp(-tanh)))

        length = brentq(slope, 0.01, 4)
        constant = (1 + curvature * np.sqrt(given.quotient) * length) ** 2
        expected.append((1 - smallest / largest) ** (2 * step) * constant * gap)
    np.testing.assert_allclose(path.bound, expected, rtol=1e-4)
    assert (path.gradient <= path.bound).all()
    assert path.gradient[0] > 1e-3 * path.bound[0]
